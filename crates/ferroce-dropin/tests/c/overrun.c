/* A wrong program, for which the library writes beyond a block of memory. AddressSanitizer must end the process here: this
 * tests the sanitizer stage itself. */
#include "check.h"

int main(void)
{
	struct ibv_context *context = open_device();
	/* An ibv_device_attr has 232 octets. */
	struct ibv_device_attr *attr = malloc(64);

	NEED(attr);
	ibv_query_device(context, attr);
	fprintf(stderr, "the library wrote beyond the block, and nothing noticed\n");
	return 0;
}
