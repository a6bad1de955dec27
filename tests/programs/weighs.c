/*
 * weighs: makes COUNT objects of a kind and keeps them until its standard input ends, so that somebody can look at the memory
 * of this process.
 *
 *   weighs KIND COUNT
 *
 * KIND qp: RC queue pairs in RESET with 128 + 128 work requests; qp-small: with 16 + 16; cq: completion queues of 128;
 *      mr: memory regions, of the same page; connection: connections to itself by connection management, with a queue pair of
 *      16 + 16 at both ends.
 *
 * Prints "ready" when they are there.
 */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static struct ibv_qp_init_attr attr(int depth)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1 },
	};
}

static void give_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = attr(16);

	if (rdma_create_qp(id, pd, &init)) die("rdma_create_qp");
}

/* both ends are of this thread, so each event is handled where it comes */
static void connect_all(int count)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	struct rdma_cm_id *listener, *id;
	socklen_t port;

	if (!channel || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP)) die("rdma_create_id");
	if (rdma_bind_addr(listener, (struct sockaddr *)&here) || rdma_listen(listener, 64)) die("rdma_listen");
	port = rdma_get_src_port(listener);
	for (int i = 0; i < count; i++) {
		if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)) die("rdma_create_id");
		here.sin_port = port;
		if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 2000)) die("rdma_resolve_addr");
		for (int established = 0; established < 2;) {
			struct rdma_cm_event *event;

			if (rdma_get_cm_event(channel, &event)) die("rdma_get_cm_event");
			struct rdma_cm_id *which = event->id;
			enum rdma_cm_event_type kind = event->event;
			int status = event->status;
			rdma_ack_cm_event(event);
			switch (kind) {
			case RDMA_CM_EVENT_ADDR_RESOLVED:
				if (rdma_resolve_route(which, 2000)) die("rdma_resolve_route");
				break;
			case RDMA_CM_EVENT_ROUTE_RESOLVED:
				give_qp(which);
				if (rdma_connect(which, &param)) die("rdma_connect");
				break;
			case RDMA_CM_EVENT_CONNECT_REQUEST:
				give_qp(which);
				if (rdma_accept(which, &param)) die("rdma_accept");
				break;
			case RDMA_CM_EVENT_ESTABLISHED:
				established++;
				break;
			default:
				fprintf(stderr, "connection %d: event %s, status %d\n", i, rdma_event_str(kind), status);
				exit(1);
			}
		}
	}
}

int main(int argc, char **argv)
{
	struct rlimit files;
	struct ibv_context **devices = rdma_get_devices(NULL);
	char *page, byte;

	if (argc != 3) { fprintf(stderr, "weighs: KIND COUNT\n"); return 2; }
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	if (!devices || !devices[0]) die("rdma_get_devices");
	context = devices[0];
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
	if (!pd || !cq || posix_memalign((void **)&page, 4096, 4096)) die("no queue");
	const char *kind = argv[1];
	int count = atoi(argv[2]);
	if (!strcmp(kind, "connection")) connect_all(count);
	else for (int i = 0; i < count; i++) {
		struct ibv_qp_init_attr init = attr(strcmp(kind, "qp") ? 16 : 128);

		if (!strncmp(kind, "qp", 2)) { if (!ibv_create_qp(pd, &init)) die("ibv_create_qp"); }
		else if (!strcmp(kind, "cq")) { if (!ibv_create_cq(context, 128, NULL, NULL, 0)) die("ibv_create_cq"); }
		else if (!strcmp(kind, "mr")) { if (!ibv_reg_mr(pd, page, 4096, IBV_ACCESS_LOCAL_WRITE)) die("ibv_reg_mr"); }
		else { fprintf(stderr, "weighs: no kind %s\n", kind); return 2; }
	}
	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) > 0) {}
	return 0;
}
