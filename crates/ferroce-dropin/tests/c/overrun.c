/* A program error that makes the library write beyond a block of memory. Under AddressSanitizer the process must end there:
 * the test of the sanitizer stage itself. */
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
