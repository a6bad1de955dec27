/* Calls that rules of FERROCE_FAULT make fail: the errno arrives as the call's man page says, and only for the device, the queue pair and
 * the call that the rule names. */
#include "cm.h"
#include "pair.h"

static const char rules[] =
	"fail=EIO if dev!=fr0,verb=alloc_pd|reg_mr|create_comp_channel|create_cq|create_srq|create_qp|create_ah\n"
	"fail=ENOMEM if verb=alloc_pd,dev=fr0,nth=2\n"
	"fail=EAGAIN if verb=reg_mr,dev=fr0|fr1,nth=3\n"
	"fail=EMFILE if verb=create_comp_channel,dev=fr0,nth=3\n"
	"fail=ENFILE if verb=create_cq,dev=fr0,nth=3\n"
	"fail=ENOSPC if verb=create_srq,dev=fr0\n"
	"fail=EPERM if verb=create_qp,dev=fr0,nth=3\n"
	"fail=EHOSTUNREACH if verb=create_ah,dev=fr0\n"
	"fail=EBUSY if verb=modify_qp,qp=1,nth=4\n"
	"fail=EACCES if verb=post_send,qp=1,dev=fr0\n"
	"fail=EFAULT if verb=post_recv,qp=0\n"
	"fail=EBUSY if verb=dereg_mr,nth=1\n"
	"fail=EINTR if verb=req_notify_cq,dev=fr0,nth=1\n"
	"fail=ENODEV if verb=open_device,dev=fr0,nth=2\n"
	"fail=EIO if verb=query_device,dev=fr0,nth=1\n"
	"fail=EAGAIN if verb=query_port,dev=fr0,nth=1\n"
	"fail=ENOENT if verb=query_gid,dev=fr0,nth=1\n"
	"fail=EBUSY if verb=query_qp,dev=fr0,qp=0,nth=1\n"
	"fail=EIO if verb=poll_cq,dev=fr0,nth=1\n"
	"fail=ENOMEM if verb=resize_cq,dev=fr0,nth=1\n"
	"fail=ENOSPC if verb=alloc_mw,dev=fr0,nth=1\n"
	"fail=ETIMEDOUT if verb=connect,nth=1\n"
	"fail=ENOMEM if verb=accept,dev=fr0,nth=1\n"
	"fail=EPERM if verb=reject,nth=1\n"
	"fail=ECONNRESET if verb=disconnect,nth=1\n"
	"fail=EADDRINUSE if verb=listen,nth=1\n"
	"fail=EHOSTUNREACH if verb=resolve_addr,nth=1\n"
	"fail=ENETUNREACH if verb=resolve_route,dev=fr0,nth=1\n";

/* A call that returns a positive errno, and sets errno as well. */
#define CHECK_CODE(call, want)                                                                   \
	do {                                                                                     \
		errno = 0;                                                                       \
		int got = (call);                                                                \
		CHECK(got == (want));                                                            \
		CHECK(errno == (want));                                                          \
	} while (0)

static struct ibv_qp_init_attr init_attr(void)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	return init;
}

/* A request arrives at the listener: its id. */
static struct rdma_cm_id *requested(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;

	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}

/* Each call of librdmacm fails once and does nothing; the second attempt succeeds. */
static void connections(void)
{
	struct rdma_event_channel *passive = rdma_create_event_channel(), *active = rdma_create_event_channel();
	struct sockaddr_storage at = address_of("127.0.0.1", 7199);
	struct rdma_cm_id *listen = NULL, *client = NULL;

	NEED(passive && active);
	NEED(rdma_create_id(passive, &listen, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listen, (void *)&at) == 0);
	CHECK_MINUS(rdma_listen(listen, 4), EADDRINUSE);
	NEED(rdma_listen(listen, 4) == 0);
	for (int round = 0; round < 2; round++) {
		NEED(rdma_create_id(active, &client, NULL, RDMA_PS_TCP) == 0);
		if (round == 0)
			CHECK_MINUS(resolve_addr(client, "127.0.0.1", 7199), EHOSTUNREACH);
		NEED(resolve_addr(client, "127.0.0.1", 7199) == 0);
		expect_event(active, client, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
		if (round == 0)
			CHECK_MINUS(rdma_resolve_route(client, 2000), ENETUNREACH);
		NEED(rdma_resolve_route(client, 2000) == 0);
		expect_event(active, client, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);

		struct ibv_qp_init_attr init = init_attr();
		struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };

		NEED(rdma_create_qp(client, NULL, &init) == 0);
		if (round == 0)
			CHECK_MINUS(rdma_connect(client, &param), ETIMEDOUT);
		NEED(rdma_connect(client, &param) == 0);
		struct rdma_cm_id *server = requested(passive);

		if (round == 0) {
			CHECK_MINUS(rdma_reject(server, NULL, 0), EPERM);
			NEED(rdma_reject(server, NULL, 0) == 0);
			struct rdma_cm_event *event = next_event(active, RDMA_CM_EVENT_REJECTED);

			CHECK(rdma_ack_cm_event(event) == 0);
		} else {
			init = init_attr();
			NEED(rdma_create_qp(server, NULL, &init) == 0);
			CHECK_MINUS(rdma_accept(server, &param), ENOMEM);
			NEED(rdma_accept(server, &param) == 0);
			struct rdma_cm_event *event = next_event(active, RDMA_CM_EVENT_ESTABLISHED);

			CHECK(rdma_ack_cm_event(event) == 0);
			expect_event(passive, server, RDMA_CM_EVENT_ESTABLISHED, 0);
			CHECK_MINUS(rdma_disconnect(client), ECONNRESET);
			NEED(rdma_disconnect(client) == 0);
			expect_event(passive, server, RDMA_CM_EVENT_DISCONNECTED, 0);
			NEED(rdma_disconnect(server) == 0);
			expect_event(active, client, RDMA_CM_EVENT_DISCONNECTED, 0);
			rdma_destroy_qp(server);
		}
		rdma_destroy_qp(client);
		CHECK(rdma_destroy_id(client) == 0);
		CHECK(rdma_destroy_id(server) == 0);
	}
	CHECK(rdma_destroy_id(listen) == 0);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

int main(void)
{
	NEED(setenv("FERROCE_FAULT", rules, 1) == 0);
	open_pd();
	NEED(strcmp(ibv_get_device_name(context->device), "fr0") == 0);
	struct end first = make_end(), second = make_end();
	char memory[64];

	CHECK_NULL(ibv_alloc_pd(context), ENOMEM);
	CHECK_NULL(ibv_reg_mr(pd, memory, sizeof(memory), 0), EAGAIN);
	CHECK_NULL(ibv_create_comp_channel(context), EMFILE);
	CHECK_NULL(ibv_create_cq(context, 4, NULL, NULL, 0), ENFILE);

	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp_init_attr qp = { .send_cq = first.cq, .recv_cq = first.cq, .qp_type = IBV_QPT_RC };
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1 };

	CHECK_NULL(ibv_create_srq(pd, &srq), ENOSPC);
	CHECK_NULL(ibv_create_qp(pd, &qp), EPERM);

	struct ibv_device_attr device;
	struct ibv_port_attr port;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_wc none;

	CHECK_NULL(ibv_open_device(context->device), ENODEV);
	CHECK_CODE(ibv_query_device(context, &device), EIO);
	CHECK_CODE(ibv_query_port(context, 1, &port), EAGAIN);
	CHECK_MINUS(ibv_query_gid(context, 1, 0, &ah.grh.dgid), ENOENT);
	CHECK_CODE(ibv_query_qp(first.qp, &attr, 0, &init), EBUSY);
	CHECK(ibv_poll_cq(first.cq, 1, &none) == -EIO && ibv_poll_cq(first.cq, 1, &none) == 0);
	CHECK_CODE(ibv_resize_cq(first.cq, 64), ENOMEM);
	CHECK_NULL(ibv_alloc_mw(pd, IBV_MW_TYPE_1), ENOSPC);
	CHECK(ibv_query_gid(context, 1, 0, &ah.grh.dgid) == 0);
	CHECK_NULL(ibv_create_ah(pd, &ah), EHOSTUNREACH);

	/* Rules for one queue pair leave the other one alone. */
	to_rts(&first, second.qp->qp_num);
	to_rts(&second, first.qp->qp_num);
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };

	CHECK_CODE(ibv_modify_qp(second.qp, &error, IBV_QP_STATE), EBUSY);
	CHECK(second.qp->state == IBV_QPS_RTS);

	struct ibv_sge sge = { .addr = (uintptr_t)second.memory, .length = 64, .lkey = second.mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad_receive = NULL;

	CHECK_CODE(ibv_post_recv(first.qp, &receive, &bad_receive), EFAULT);
	CHECK(bad_receive == &receive);
	CHECK(ibv_post_recv(second.qp, &receive, &bad_receive) == 0);

	struct ibv_send_wr send = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_send_wr *bad_send = NULL;

	CHECK_CODE(ibv_post_send(second.qp, &send, &bad_send), EACCES);
	CHECK(bad_send == &send);
	sge.addr = (uintptr_t)first.memory;
	sge.lkey = first.mr->lkey;
	strcpy(first.memory, "not failed");
	CHECK(ibv_post_send(first.qp, &send, &bad_send) == 0);
	struct ibv_wc wc = {};

	while (ibv_poll_cq(second.cq, 1, &wc) == 0)
		;
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1 && strcmp(second.memory, "not failed") == 0);

	/* The registration that was not ended is still there. */
	CHECK_CODE(ibv_req_notify_cq(first.cq, 0), EINTR);
	CHECK(ibv_req_notify_cq(first.cq, 0) == 0);
	CHECK_CODE(ibv_dereg_mr(first.mr), EBUSY);
	CHECK(ibv_dereg_mr(first.mr) == 0);
	connections();
	return finish();
}
