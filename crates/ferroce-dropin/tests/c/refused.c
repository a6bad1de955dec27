/* Management datagrams are not built yet: every call is there and says so. */
#include "check.h"

#include <infiniband/umad.h>

#define CHECK_NEGATIVE(call)                                                                     \
	do {                                                                                     \
		CHECK((call) == -EOPNOTSUPP);                                                    \
	} while (0)

int main(void)
{
	CHECK_NEGATIVE(umad_open_port("fr0", 1));
	CHECK_NEGATIVE(umad_get_fd(0));
	return finish();
}
