/*
 * holds: makes queue pairs and keeps them until its standard input ends.
 *
 *   holds [-d DEV] COUNT
 *
 * Prints "ready" when they are there.
 */
#include "pair.h"

int main(int argc, char **argv)
{
	int option, number, count = 0;
	struct ibv_device **list = ibv_get_device_list(&number);
	char byte;

	while ((option = getopt(argc, argv, "d:")) != -1) device = optarg;
	if (optind < argc) count = atoi(argv[optind]);
	for (int i = 0; list && list[i]; i++)
		if (!device || !strcmp(device, ibv_get_device_name(list[i]))) {
			context = ibv_open_device(list[i]);
			break;
		}
	if (!context) die("no device");
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	if (!pd || !cq) die("no queue");
	for (int i = 0; i < count; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		};

		if (!ibv_create_qp(pd, &init)) die("ibv_create_qp");
	}
	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) > 0) {}
	return 0;
}
