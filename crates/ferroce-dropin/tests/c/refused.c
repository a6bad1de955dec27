/* Calls that are not implemented exist and return their errors. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>

int main(void)
{
	/* Newer than the headers: struct umad_ca_pair pairs[], size_t max_pairs. */
	void *umad = dlopen("libibumad.so.3", RTLD_NOW);
	NEED(umad);
	int (*pairs)(void *, size_t) = dlsym(umad, "umad_get_smi_gsi_pairs");
	int (*by_name)(const char *, uint8_t, void *, uint8_t) =
		dlsym(umad, "umad_get_smi_gsi_pair_by_ca_name");
	uint8_t room[256] = { 0 };

	NEED(pairs && by_name);
	CHECK(pairs(room, 1) == -EOPNOTSUPP);
	CHECK(by_name("fr0", 1, room, 0) == -EOPNOTSUPP);
	return finish();
}
