/* Wrong callers: NULLs, bad sizes, destroyed handles. Each call fails as its man page says; none crashes. */
#include "check.h"

#include <sys/mman.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static struct ibv_qp_init_attr init_attr(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
	};
	return init;
}

static void nulls_are_refused(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct ibv_qp_init_attr init = init_attr();
	struct ibv_async_event event;
	struct ibv_cq *fired;
	void *user;

	CHECK_NULL(ibv_open_device(NULL), EINVAL);
	CHECK(ibv_get_device_name(NULL) == NULL);
	CHECK(ibv_get_device_guid(NULL) == 0);
	ibv_free_device_list(NULL);
	CHECK(ibv_close_device(NULL) == EINVAL);
	CHECK_NULL(ibv_alloc_pd(NULL), EINVAL);
	CHECK(ibv_dealloc_pd(NULL) == EINVAL);
	CHECK_NULL((ibv_reg_mr)(NULL, &event, 8, 0), EINVAL);
	CHECK(ibv_dereg_mr(NULL) == EINVAL);
	CHECK_NULL(ibv_create_comp_channel(NULL), EINVAL);
	CHECK(ibv_destroy_comp_channel(NULL) == EINVAL);
	CHECK_NULL(ibv_create_cq(NULL, 1, NULL, NULL, 0), EINVAL);
	CHECK(ibv_resize_cq(NULL, 4) == EINVAL);
	CHECK(ibv_destroy_cq(NULL) == EINVAL);
	ibv_ack_cq_events(NULL, 1);
	CHECK_MINUS(ibv_get_cq_event(NULL, &fired, &user), EINVAL);
	CHECK_MINUS(ibv_get_async_event(NULL, &event), EINVAL);
	CHECK_MINUS(ibv_get_async_event(context, NULL), EINVAL);
	ibv_ack_async_event(NULL);
	CHECK_NULL(ibv_create_qp(NULL, &init), EINVAL);
	CHECK_NULL(ibv_create_qp(pd, NULL), EINVAL);
	CHECK(ibv_modify_qp(NULL, &attr, IBV_QP_STATE) == EINVAL);
	CHECK(ibv_query_qp(NULL, &attr, 0, &init) == EINVAL);
	CHECK(ibv_destroy_qp(NULL) == EINVAL);
	CHECK(ibv_qp_to_qp_ex(NULL) == NULL);
	CHECK(ibv_query_device(NULL, NULL) == EINVAL);

	/* The inline calls dereference the object, so these call the function pointers directly. */
	struct ibv_send_wr *bad_send;
	struct ibv_recv_wr *bad_recv;
	struct verbs_context *verbs = verbs_get_ctx(context);

	CHECK(context->ops.post_send(NULL, NULL, &bad_send) == EINVAL);
	CHECK(context->ops.post_recv(NULL, NULL, &bad_recv) == EINVAL);
	CHECK(context->ops.poll_cq(NULL, 1, NULL) == -EINVAL);
	CHECK(context->ops.req_notify_cq(NULL, 0) == EINVAL);
	CHECK_NULL(verbs->create_cq_ex(context, NULL), EINVAL);
	CHECK_NULL(verbs->create_qp_ex(context, NULL), EINVAL);
}

static void queues_have_limits(void)
{
	struct ibv_device_attr device;

	CHECK(ibv_query_device(context, &device) == 0);
	CHECK_NULL(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	CHECK_NULL(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	CHECK_NULL(ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0), EINVAL);
	CHECK_NULL(ibv_create_cq(context, 1, NULL, NULL, -1), EINVAL);
	CHECK_NULL(ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors), EINVAL);
	struct ibv_cq *largest = ibv_create_cq(context, device.max_cqe, NULL, NULL, 0);

	CHECK(largest && largest->cqe >= device.max_cqe);
	CHECK(ibv_resize_cq(largest, 0) == EINVAL);
	CHECK(ibv_resize_cq(largest, -5) == EINVAL);
	CHECK(ibv_resize_cq(largest, device.max_cqe + 1) == EINVAL);
	CHECK(ibv_resize_cq(largest, 16) == 0 && largest->cqe >= 16);
	CHECK(ibv_destroy_cq(largest) == 0);

	struct ibv_wc wc;

	CHECK(ibv_poll_cq(cq, 0, &wc) == 0);
	CHECK(ibv_poll_cq(cq, -1, &wc) < 0);
	CHECK(ibv_poll_cq(cq, 1, NULL) < 0);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
}

static void extended_queues_refuse_unknown_flags(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *queue = ibv_create_cq_ex(context, &attr);

	NEED(queue);
	struct ibv_poll_cq_attr poll = {};

	CHECK(ibv_start_poll(queue, &poll) == ENOENT);
	CHECK(ibv_next_poll(queue) == EINVAL);
	poll.comp_mask = 1;
	CHECK(ibv_start_poll(queue, &poll) == EINVAL);
	/* Ended twice, or never started: the call does nothing. */
	ibv_end_poll(queue);
	CHECK(ibv_start_poll(queue, NULL) == ENOENT);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(queue)) == 0);

	attr.wc_flags = IBV_WC_EX_WITH_TM_INFO;
	CHECK_NULL(ibv_create_cq_ex(context, &attr), EOPNOTSUPP);
	attr.wc_flags = 1ull << 60;
	CHECK_NULL(ibv_create_cq_ex(context, &attr), EOPNOTSUPP);
	attr.wc_flags = 0;
	attr.comp_mask = 1u << 20;
	CHECK_NULL(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
	CHECK_NULL(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.parent_domain = pd;
	CHECK_NULL(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	attr.flags = 1u << 20;
	CHECK_NULL(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	attr.cqe = 0;
	CHECK_NULL(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.cqe = 1;
	queue = ibv_create_cq_ex(context, &attr);
	CHECK(queue && ibv_destroy_cq(ibv_cq_ex_to_cq(queue)) == 0);
}

static void registrations_are_checked(void)
{
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	NEED(page != MAP_FAILED);
	NEED(munmap(page + 4096, 4096) == 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, page, 4096, IBV_ACCESS_LOCAL_WRITE);

	NEED(mr);
	CHECK(mr->addr == page && mr->length == 4096 && mr->pd == pd && mr->context == context);
	CHECK(mr->lkey != 0 && ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dereg_mr(mr) == EINVAL);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);

	CHECK_NULL(ibv_reg_mr(pd, page, 8192, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	CHECK_NULL(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	CHECK_NULL(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	volatile int unknown = 1 << 15;

	CHECK_NULL(ibv_reg_mr(pd, page, 4096, unknown), EINVAL);
	CHECK_NULL(ibv_reg_mr(pd, page, SIZE_MAX, 0), EINVAL);
	volatile int relaxed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;

	mr = ibv_reg_mr(pd, page, 4096, relaxed);
	CHECK(mr && ibv_dereg_mr(mr) == 0);
	NEED(mprotect(page, 4096, PROT_READ) == 0);
	CHECK_NULL(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	mr = ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_READ);
	CHECK(mr && ibv_dereg_mr(mr) == 0);
	mr = ibv_reg_mr_iova(pd, page, 4096, 0x123450000, 0);
	CHECK(mr && ibv_dereg_mr(mr) == 0);
	munmap(page, 4096);
}

static void queue_pairs_have_limits(void)
{
	struct ibv_device_attr device;
	struct ibv_qp_init_attr init;

	CHECK(ibv_query_device(context, &device) == 0);
#define REFUSED(change, want)                                                                    \
	do {                                                                                     \
		init = init_attr();                                                              \
		change;                                                                          \
		CHECK_NULL(ibv_create_qp(pd, &init), want);                                      \
	} while (0)
	REFUSED(init.cap.max_send_wr = device.max_qp_wr + 1, EINVAL);
	REFUSED(init.cap.max_recv_wr = device.max_qp_wr + 1, EINVAL);
	REFUSED(init.cap.max_send_sge = device.max_sge + 1, EINVAL);
	REFUSED(init.cap.max_recv_sge = UINT32_MAX, EINVAL);
	REFUSED(init.cap.max_inline_data = 1 << 20, EINVAL);
	REFUSED(init.send_cq = NULL, EINVAL);
	REFUSED(init.recv_cq = NULL, EINVAL);
	REFUSED(init.qp_type = IBV_QPT_DRIVER, EOPNOTSUPP);
	REFUSED(init.qp_type = 77, EINVAL);

	struct ibv_qp_init_attr_ex ex = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = init_attr().cap,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
	};
	ex.send_ops_flags = IBV_QP_EX_WITH_TSO;
	CHECK_NULL(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex.send_ops_flags = 1ull << 50;
	CHECK_NULL(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex.send_ops_flags = IBV_QP_EX_WITH_SEND;
	ex.comp_mask |= 1u << 30;
	CHECK_NULL(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	CHECK_NULL(ibv_create_qp_ex(context, &ex), EINVAL);
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	ex.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	CHECK_NULL(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	CHECK(ibv_poll_cq(cq, 0, NULL) == 0);
}

static void states_and_values_are_checked(void)
{
	struct ibv_qp_init_attr init = init_attr();
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr;
	int to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

	NEED(qp);
	CHECK(init.cap.max_send_wr >= 4 && init.cap.max_inline_data >= 64);
	CHECK(qp->state == IBV_QPS_RESET && qp->qp_num != 0 && qp->qp_type == IBV_QPT_RC);
	CHECK(ibv_qp_to_qp_ex(qp) == NULL);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_modify_qp(qp, NULL, IBV_QP_STATE) == EINVAL);
	CHECK(ibv_query_qp(qp, NULL, 0, &init) == EINVAL);
	CHECK(ibv_query_qp(qp, &attr, 0, NULL) == EINVAL);

#define MODIFY(mask, want, ...)                                                                  \
	do {                                                                                     \
		attr = (struct ibv_qp_attr){ __VA_ARGS__ };                                      \
		CHECK(ibv_modify_qp(qp, &attr, mask) == (want));                                 \
	} while (0)
	MODIFY(IBV_QP_STATE, EINVAL, .qp_state = IBV_QPS_RTS);
	MODIFY(IBV_QP_STATE, EINVAL, .qp_state = IBV_QPS_INIT);
	MODIFY(IBV_QP_STATE, EINVAL, .qp_state = 99);
	MODIFY(to_init, EINVAL, .qp_state = IBV_QPS_INIT, .port_num = 2);
	MODIFY(to_init, EINVAL, .qp_state = IBV_QPS_INIT, .port_num = 1, .pkey_index = 1);
	MODIFY(to_init | IBV_QP_RATE_LIMIT, EINVAL, .qp_state = IBV_QPS_INIT, .port_num = 1);
	CHECK(qp->state == IBV_QPS_RESET);
	MODIFY(to_init, 0, .qp_state = IBV_QPS_INIT, .port_num = 1);
	CHECK(qp->state == IBV_QPS_INIT);

	int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	struct ibv_qp_attr good = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } },
	};
	CHECK(ibv_query_gid(context, 1, 0, &good.ah_attr.grh.dgid) == 0);
#define RTR(change)                                                                              \
	do {                                                                                     \
		attr = good;                                                                     \
		change;                                                                          \
		CHECK(ibv_modify_qp(qp, &attr, to_rtr) == EINVAL);                               \
		CHECK(qp->state == IBV_QPS_INIT);                                                \
	} while (0)
	RTR(attr.path_mtu = 0);
	RTR(attr.path_mtu = 6);
	RTR(attr.path_mtu = 300);
	RTR(attr.ah_attr.is_global = 0);
	RTR(attr.ah_attr.port_num = 2);
	RTR(attr.ah_attr.grh.sgid_index = 200);
	RTR(memset(&attr.ah_attr.grh.dgid, 0, 16));
	RTR(attr.min_rnr_timer = 32);
	RTR(attr.max_dest_rd_atomic = 200);

	/* Posts that the state does not permit, and malformed requests. */
	struct ibv_sge sge[3] = {};
	struct ibv_send_wr send = { .wr_id = 1, .opcode = IBV_WR_SEND, .num_sge = 0 }, *bad_send = NULL;
	struct ibv_recv_wr recv = { .wr_id = 2, .sg_list = sge, .num_sge = 3 }, *bad_recv = NULL;

	CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL && bad_send == &send);
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	recv.num_sge = -1;
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL);
	/* A wrong count: the call does not read the list. */
	char *edge = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	NEED(edge != MAP_FAILED);
	recv.sg_list = (struct ibv_sge *)(edge + 4096 - sizeof(struct ibv_sge));
	recv.num_sge = INT32_MAX;
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL);
	send.sg_list = recv.sg_list;
	send.num_sge = INT32_MAX;
	send.send_flags = IBV_SEND_INLINE;
	CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL);
	send.num_sge = 0;
	send.send_flags = 0;
	munmap(edge, 4096);
	recv.num_sge = 1;
	recv.sg_list = NULL;
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL);
	CHECK(ibv_post_recv(qp, &recv, NULL) == EINVAL);
	recv.num_sge = 0;
	struct ibv_recv_wr chain[6];

	for (int i = 0; i < 6; i++)
		chain[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i < 5 ? &chain[i + 1] : NULL };
	CHECK(ibv_post_recv(qp, chain, &bad_recv) == ENOMEM);
	CHECK(bad_recv == &chain[init.cap.max_recv_wr]);

	MODIFY(IBV_QP_STATE, 0, .qp_state = IBV_QPS_ERR);
	CHECK(qp->state == IBV_QPS_ERR);
	send.opcode = 99;
	CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL && bad_send == &send);
	send.opcode = IBV_WR_BIND_MW;
	CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);

	/* After destruction each call fails. */
	CHECK(ibv_destroy_qp(qp) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	CHECK(context->ops.post_send(qp, &send, &bad_send) == EINVAL);
	CHECK(context->ops.post_recv(qp, &recv, &bad_recv) == EINVAL);
	struct ibv_wc wc[8];

	CHECK(ibv_poll_cq(cq, 8, wc) == 0);
}

static void destroyed_handles_are_refused(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *queue = ibv_create_cq(context, 4, NULL, channel, 0);
	struct ibv_pd *domain = ibv_alloc_pd(context);
	struct ibv_wc wc;

	NEED(channel && queue && domain);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_destroy_cq(queue) == 0);
	CHECK(ibv_destroy_cq(queue) == EINVAL);
	CHECK(context->ops.poll_cq(queue, 1, &wc) == -EINVAL);
	CHECK(context->ops.req_notify_cq(queue, 0) == EINVAL);
	CHECK(ibv_resize_cq(queue, 8) == EINVAL);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == EINVAL);
	CHECK_NULL(ibv_create_cq(context, 4, NULL, channel, 0), EINVAL);
	CHECK(ibv_dealloc_pd(domain) == 0);
	CHECK(ibv_dealloc_pd(domain) == EINVAL);
	CHECK_NULL((ibv_reg_mr)(domain, &wc, sizeof(wc), 0), EINVAL);
}

int main(void)
{
	context = open_device();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	NEED(pd && cq);
	nulls_are_refused();
	queues_have_limits();
	extended_queues_refuse_unknown_flags();
	destroyed_handles_are_refused();
	registrations_are_checked();
	queue_pairs_have_limits();
	states_and_values_are_checked();
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
	/* A registration outlives its device until it is ended. */
	pd = ibv_alloc_pd(context);
	char memory[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), 0);

	NEED(mr);
	CHECK(ibv_close_device(context) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	return finish();
}
