/* Loses the memory of a device list: memcheck must report it, whatever is suppressed. */
#include <infiniband/verbs.h>

int main(void)
{
	struct ibv_device **volatile list = ibv_get_device_list(NULL);

	if (!list)
		return 2;
	list = ibv_get_device_list(NULL);
	if (!list)
		return 2;
	ibv_free_device_list(list);
	list = NULL;
	return 0;
}
