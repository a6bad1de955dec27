/* Every verb refuses unknown arguments with the errno of its man page, and changes nothing; limits apply at creation. A row
 * is a call and its result; after each one the objects are unchanged. */
#include "pair.h"

#include <fcntl.h>

static struct end a, b;
static struct ibv_srq *srq;
static struct ibv_td *td;
static struct ibv_pd *parent;
static struct ibv_device_attr device;

/* The state that a refused call must not change. */
struct state {
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_srq_attr srq;
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	int cqe;
	enum ibv_qp_state shown;
	uint32_t lkey;
};

static struct state state(void)
{
	struct state now;

	memset(&now, 0, sizeof(now));
	CHECK(ibv_query_qp(a.qp, &now.attr, 0, &now.init) == 0);
	CHECK(ibv_query_srq(srq, &now.srq) == 0);
	CHECK(ibv_query_device(context, &now.device) == 0);
	CHECK(ibv_query_port(context, 1, &now.port) == 0);
	now.cqe = a.cq->cqe;
	now.shown = a.qp->state;
	now.lkey = a.mr->lkey;
	return now;
}

static struct state before;

/* Padding between members is not compared. */
static const char *difference(const struct state *now)
{
#define SAME(member)                                                                             \
	do {                                                                                     \
		if (memcmp(&now->member, &before.member, sizeof(before.member)))                 \
			return #member;                                                          \
	} while (0)
	SAME(attr.qp_state);
	SAME(attr.cur_qp_state);
	SAME(attr.path_mtu);
	SAME(attr.path_mig_state);
	SAME(attr.qkey);
	SAME(attr.rq_psn);
	SAME(attr.sq_psn);
	SAME(attr.dest_qp_num);
	SAME(attr.qp_access_flags);
	SAME(attr.cap);
	SAME(attr.ah_attr.grh.dgid);
	SAME(attr.ah_attr.grh.sgid_index);
	SAME(attr.ah_attr.grh.hop_limit);
	SAME(attr.ah_attr.grh.traffic_class);
	SAME(attr.ah_attr.port_num);
	SAME(attr.alt_ah_attr.port_num);
	SAME(attr.pkey_index);
	SAME(attr.sq_draining);
	SAME(attr.max_rd_atomic);
	SAME(attr.max_dest_rd_atomic);
	SAME(attr.min_rnr_timer);
	SAME(attr.port_num);
	SAME(attr.timeout);
	SAME(attr.retry_cnt);
	SAME(attr.rnr_retry);
	SAME(attr.alt_port_num);
	SAME(attr.rate_limit);
	SAME(init.qp_context);
	SAME(init.send_cq);
	SAME(init.recv_cq);
	SAME(init.srq);
	SAME(init.cap);
	SAME(init.qp_type);
	SAME(init.sq_sig_all);
	SAME(srq);
	SAME(device.max_qp);
	SAME(device.device_cap_flags);
	SAME(port.state);
	SAME(port.active_mtu);
	SAME(port.gid_tbl_len);
	SAME(cqe);
	SAME(shown);
	SAME(lkey);
	return NULL;
}

static void untouched(const char *what, int line)
{
	struct state now = state();
	struct ibv_async_event event;
	struct ibv_wc wc;
	const char *changed = difference(&now);

	if (ibv_poll_cq(a.cq, 1, &wc) != 0 || ibv_poll_cq(b.cq, 1, &wc) != 0)
		changed = "a completion queue";
	if (ibv_get_async_event(context, &event) != -1)
		changed = "the events";
	if (changed) {
		fprintf(stderr, "%s:%d: %s changed %s\n", __FILE__, line, what, changed);
		failures++;
		before = now;
	}
}

static void row(const char *what, int line, long got, long want, int wanted_errno)
{
	int seen = errno;

	if (got != want || (wanted_errno && seen != wanted_errno)) {
		fprintf(stderr, "%s:%d: %s is %ld (errno %d), not %ld (errno %d)\n", __FILE__, line, what, got, seen, want,
			wanted_errno);
		failures++;
	}
	untouched(what, line);
}

/* Return values: 0 or an errno; NULL and errno; -1 and errno; a negative errno. */
#define CODE(want, call) (errno = 0, row(#call, __LINE__, (call), want, 0))
#define NOTHING(want, call)                                                                      \
	do {                                                                                     \
		errno = 0;                                                                       \
		const void *made = (call);                                                       \
		row(#call, __LINE__, (long)made, 0, want);                                       \
	} while (0)
#define MINUS(want, call)                                                                        \
	do {                                                                                     \
		errno = 0;                                                                       \
		long returned = (call);                                                          \
		row(#call, __LINE__, returned, -1, want);                                        \
	} while (0)
#define NEGATIVE(want, call) (errno = 0, row(#call, __LINE__, (call), -(want), 0))

static struct verbs_context *slots(void)
{
	return verbs_get_ctx(context);
}

static void devices_and_ports(void)
{
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	struct ibv_device_attr_ex ex;
	struct ibv_port_attr port;
	struct ibv_gid_entry entries[64];
	union ibv_gid gid;
	__be16 pkey;

	CODE(EINVAL, ibv_query_device_ex(context, &input, &ex));
	CODE(EINVAL, slots()->query_device_ex(context, NULL, &ex, 8));
	CODE(EINVAL, ibv_query_port(context, 0, &port));
	CODE(EINVAL, ibv_query_port(context, 2, &port));
	CODE(EINVAL, slots()->query_port(context, 1, NULL, sizeof(port)));
	MINUS(EINVAL, ibv_query_gid(context, 2, 0, &gid));
	MINUS(EINVAL, ibv_query_gid(context, 1, -1, &gid));
	MINUS(EINVAL, ibv_query_gid(context, 1, before.port.gid_tbl_len, &gid));
	MINUS(EINVAL, ibv_query_gid(context, 1, 0, NULL));
	CODE(EINVAL, ibv_query_gid_ex(context, 2, 0, entries, 0));
	CODE(EINVAL, ibv_query_gid_ex(context, 1, before.port.gid_tbl_len, entries, 0));
	CODE(EINVAL, ibv_query_gid_ex(context, 1, 0, entries, 1));
	CODE(EINVAL, ibv_query_gid_ex(context, 1, 0, NULL, 0));
	CODE(EINVAL, _ibv_query_gid_ex(context, 1, 0, entries, 0, 16));
	CODE(ENODATA, ibv_query_gid_ex(context, 1, before.port.gid_tbl_len - 1, entries, 0));
	NEGATIVE(EINVAL, ibv_query_gid_table(context, entries, 1, 0));
	NEGATIVE(EINVAL, ibv_query_gid_table(context, NULL, 4, 0));
	NEGATIVE(EINVAL, ibv_query_gid_table(context, entries, 64, 1));
	NEGATIVE(EINVAL, _ibv_query_gid_table(context, entries, 64, 0, 8));
	MINUS(EINVAL, ibv_query_pkey(context, 1, 1, &pkey));
	MINUS(EINVAL, ibv_query_pkey(context, 1, -1, &pkey));
	MINUS(EINVAL, ibv_query_pkey(context, 2, 0, &pkey));
	MINUS(EINVAL, ibv_get_pkey_index(context, 1, htobe16(0x1234)));
	CODE(EINVAL, slots()->query_rt_values(context, NULL));
}

static void completion_queues(void)
{
	struct ibv_context *other = open_device();
	struct ibv_comp_channel *foreign = ibv_create_comp_channel(other);
	struct ibv_modify_cq_attr modify = { .attr_mask = 2 };
	struct ibv_cq_init_attr_ex ex = { .cqe = 4 };

	NOTHING(EINVAL, ibv_create_cq(context, 0, NULL, NULL, 0));
	NOTHING(EINVAL, ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0));
	NOTHING(EINVAL, ibv_create_cq(context, 4, NULL, NULL, context->num_comp_vectors));
	NOTHING(EINVAL, ibv_create_cq(context, 4, NULL, foreign, 0));
	for (int bit = 0; bit < 64; bit++) {
		int known = bit < 10 || bit == 11;

		ex = (struct ibv_cq_init_attr_ex){ .cqe = 4, .wc_flags = 1ull << bit };
		if (!known)
			NOTHING(EOPNOTSUPP, ibv_create_cq_ex(context, &ex));
	}
	for (int bit = 2; bit < 32; bit++) {
		ex = (struct ibv_cq_init_attr_ex){ .cqe = 4, .comp_mask = 1u << bit };
		NOTHING(EINVAL, ibv_create_cq_ex(context, &ex));
		ex = (struct ibv_cq_init_attr_ex){ .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = 1u << bit };
		NOTHING(EINVAL, ibv_create_cq_ex(context, &ex));
	}
	ex = (struct ibv_cq_init_attr_ex){ .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = pd };
	NOTHING(EINVAL, ibv_create_cq_ex(context, &ex));
	CODE(EINVAL, ibv_resize_cq(a.cq, 0));
	CODE(EINVAL, ibv_resize_cq(a.cq, device.max_cqe + 1));
	CODE(EINVAL, ibv_modify_cq(a.cq, &modify));
	CODE(EINVAL, slots()->modify_cq(a.cq, NULL));
	CHECK(ibv_destroy_comp_channel(foreign) == 0 && ibv_close_device(other) == 0);
}

static struct ibv_qp_init_attr_ex qp_init(void)
{
	return (struct ibv_qp_init_attr_ex){
		.send_cq = a.cq, .recv_cq = a.cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD,
	};
}

/* The operations that each type supports in the wr_* functions, in this version. */
static uint64_t send_ops(enum ibv_qp_type type)
{
	uint64_t all = 0;
	struct ibv_qp_init_attr_ex init;

	for (int bit = 0; bit < 64; bit++) {
		init = qp_init();
		init.qp_type = type;
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = 1ull << bit;
		errno = 0;
		struct ibv_qp *qp = ibv_create_qp_ex(context, &init);

		if (!qp) {
			row("a queue pair that sends what it cannot", __LINE__, errno, EOPNOTSUPP, 0);
			continue;
		}
		struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);

		CHECK(qpx && qpx->wr_start && qpx->wr_complete && qpx->wr_abort);
		CHECK(ibv_destroy_qp(qp) == 0);
		all |= 1ull << bit;
	}
	return all;
}

static void queue_pairs_at_creation(void)
{
	struct ibv_context *other = open_device();
	struct ibv_cq *foreign = ibv_create_cq(other, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex init;
	const uint64_t rc = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
			    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
			    IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV;

#define REFUSED(want, change)                                                                    \
	do {                                                                                     \
		init = qp_init();                                                                \
		change;                                                                          \
		NOTHING(want, ibv_create_qp_ex(context, &init));                                 \
	} while (0)
	REFUSED(EINVAL, init.cap.max_send_wr = device.max_qp_wr + 1);
	REFUSED(EINVAL, init.cap.max_recv_wr = device.max_qp_wr + 1);
	REFUSED(EINVAL, init.cap.max_send_sge = device.max_sge + 1);
	REFUSED(EINVAL, init.cap.max_recv_sge = device.max_sge + 1);
	REFUSED(EINVAL, init.cap.max_inline_data = 1 << 20);
	REFUSED(EINVAL, init.send_cq = NULL);
	REFUSED(EINVAL, init.recv_cq = NULL);
	REFUSED(EINVAL, init.send_cq = foreign);
	REFUSED(EINVAL, init.recv_cq = foreign);
	REFUSED(EINVAL, init.pd = NULL);
	REFUSED(EINVAL, init.comp_mask = IBV_QP_INIT_ATTR_CREATE_FLAGS);
	REFUSED(EINVAL, init.qp_type = 0);
	REFUSED(EINVAL, init.qp_type = 77);
	REFUSED(EOPNOTSUPP, init.qp_type = IBV_QPT_DRIVER);
	for (int bit = 0; bit < 32; bit++) {
		REFUSED(EOPNOTSUPP, (init.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS, init.create_flags = 1u << bit));
		if (bit > 6)
			REFUSED(EOPNOTSUPP, init.comp_mask |= 1u << bit);
	}
	REFUSED(EOPNOTSUPP, init.comp_mask |= IBV_QP_INIT_ATTR_IND_TABLE);
	REFUSED(EOPNOTSUPP, init.comp_mask |= IBV_QP_INIT_ATTR_RX_HASH);
	REFUSED(EOPNOTSUPP, init.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER);
	CHECK((send_ops(IBV_QPT_RC) & rc) == rc);
	CHECK((send_ops(IBV_QPT_RC) & IBV_QP_EX_WITH_TSO) == 0);
	CHECK(ibv_destroy_cq(foreign) == 0 && ibv_close_device(other) == 0);
}

static void queue_pairs_that_live(void)
{
	struct ibv_qp_attr attr;

#define MODIFY(mask, ...)                                                                        \
	do {                                                                                     \
		attr = (struct ibv_qp_attr){ __VA_ARGS__ };                                      \
		CODE(EINVAL, ibv_modify_qp(a.qp, &attr, mask));                                  \
	} while (0)
	/* Attributes that the state does not permit, and those that RoCE lacks. */
	for (int bit = 0; bit < 32; bit++) {
		uint32_t mask = 1u << bit;

		if (!(mask & (IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE |
			      IBV_QP_MIN_RNR_TIMER)))
			MODIFY(mask, .qp_state = IBV_QPS_RTS);
	}
	MODIFY(IBV_QP_ALT_PATH, .alt_port_num = 1);
	MODIFY(IBV_QP_CUR_STATE, .cur_qp_state = IBV_QPS_SQD);
	MODIFY(IBV_QP_MIN_RNR_TIMER, .min_rnr_timer = 32);
	MODIFY(IBV_QP_STATE, .qp_state = IBV_QPS_INIT);
	MODIFY(IBV_QP_STATE, .qp_state = IBV_QPS_RTR);
	MODIFY(IBV_QP_STATE, .qp_state = IBV_QPS_SQE);
	MODIFY(IBV_QP_STATE, .qp_state = 50);
	MODIFY(IBV_QP_STATE | IBV_QP_TIMEOUT, .qp_state = IBV_QPS_ERR, .timeout = 14);
	CODE(EINVAL, ibv_modify_qp(a.qp, NULL, IBV_QP_STATE));

	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 1000 };
	struct ibv_ece ece = { .vendor_id = 0x02c9 };

	CODE(EOPNOTSUPP, ibv_modify_qp_rate_limit(a.qp, &rate));
	CODE(EOPNOTSUPP, ibv_query_ece(a.qp, &ece));
	CODE(EOPNOTSUPP, ibv_set_ece(a.qp, &ece));
	/* Retransmitted packets are placed. */
	for (int opcode = IBV_WR_RDMA_WRITE; opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD; opcode++) {
		CODE(0, ibv_query_qp_data_in_order(a.qp, opcode, 0));
		CODE(0, ibv_query_qp_data_in_order(a.qp, opcode, 1));
	}
	CHECK(ibv_qp_to_qp_ex(a.qp) == a.qpx);
}

static void work_requests(void)
{
	struct ibv_sge sges[5] = { { .addr = (uintptr_t)a.memory, .length = 8, .lkey = a.mr->lkey } };
	struct ibv_send_wr send, *bad_send;
	struct ibv_recv_wr recv, *bad_recv;

	sges[1] = sges[2] = sges[3] = sges[4] = sges[0];
#define SEND(want, change)                                                                       \
	do {                                                                                     \
		send = (struct ibv_send_wr){ .sg_list = sges, .num_sge = 1, .opcode = IBV_WR_SEND }; \
		send.wr.rdma.remote_addr = (uintptr_t)b.memory;                                  \
		send.wr.rdma.rkey = b.mr->rkey;                                                  \
		bad_send = NULL;                                                                 \
		change;                                                                          \
		CODE(want, ibv_post_send(a.qp, &send, &bad_send));                               \
		CHECK(bad_send == &send);                                                        \
	} while (0)
	for (int bit = 0; bit < 32; bit++)
		if ((1u << bit) & ~(IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE))
			SEND(EINVAL, send.send_flags = 1u << bit);
	for (int opcode = 0; opcode < 64; opcode++)
		if (opcode == IBV_WR_TSO || opcode == IBV_WR_DRIVER1 || opcode > 16)
			SEND(EINVAL, send.opcode = opcode);
	SEND(EINVAL, send.num_sge = before.init.cap.max_send_sge + 1);
	SEND(EINVAL, send.num_sge = -1);
	SEND(EINVAL, send.sg_list = NULL);
	SEND(EINVAL, (send.send_flags = IBV_SEND_INLINE, sges[0].length = 1 << 16));
	sges[0].length = 8;
	SEND(EINVAL, (send.opcode = IBV_WR_RDMA_READ, send.send_flags = IBV_SEND_INLINE));
	SEND(EINVAL, (send.opcode = IBV_WR_RDMA_WRITE, sges[0].length = 0x80000001));
	sges[0].length = 8;
	SEND(EINVAL, (send.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, send.wr.atomic.remote_addr = (uintptr_t)b.memory + 1,
		      send.wr.atomic.rkey = b.mr->rkey));
	SEND(EINVAL, (send.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, sges[0].length = 4));
	sges[0].length = 8;
#define RECEIVE(want, change)                                                                    \
	do {                                                                                     \
		recv = (struct ibv_recv_wr){ .sg_list = sges, .num_sge = 1 };                    \
		bad_recv = NULL;                                                                 \
		change;                                                                          \
		CODE(want, ibv_post_recv(a.qp, &recv, &bad_recv));                               \
		CHECK(bad_recv == &recv);                                                        \
		CODE(want, ibv_post_srq_recv(srq, &recv, &bad_recv));                            \
	} while (0)
	RECEIVE(EINVAL, recv.num_sge = 40);
	RECEIVE(EINVAL, recv.num_sge = -1);
	RECEIVE(EINVAL, recv.sg_list = NULL);
}

/* The same by functions: the first error persists, and the whole batch is dropped. */
static void batches(void)
{
	struct ibv_qp_ex *qpx = a.qpx;
	struct ibv_data_buf buffers[2] = { { .addr = a.memory, .length = 100 }, { .addr = a.memory, .length = 100 } };

#define BATCH(want, ...)                                                                         \
	do {                                                                                     \
		ibv_wr_start(qpx);                                                               \
		qpx->wr_id = 1;                                                                  \
		qpx->wr_flags = IBV_SEND_SIGNALED;                                               \
		ibv_wr_rdma_write(qpx, b.mr->rkey, (uintptr_t)b.memory);                         \
		ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.memory, 8);                         \
		__VA_ARGS__;                                                                     \
		ibv_wr_rdma_write(qpx, b.mr->rkey, (uintptr_t)b.memory);                         \
		ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.memory, 8);                         \
		CODE(want, ibv_wr_complete(qpx));                                                \
	} while (0)
	BATCH(ENOSPC, (ibv_wr_send(qpx), ibv_wr_set_inline_data(qpx, a.memory, 4096)));
	/* Each request fits, both together do not. */
	CHECK(before.init.cap.max_inline_data < 200 && before.init.cap.max_inline_data >= 100);
	BATCH(ENOSPC, (ibv_wr_send(qpx), ibv_wr_set_inline_data_list(qpx, 2, buffers)));
	BATCH(EINVAL, (ibv_wr_send(qpx), ibv_wr_set_inline_data_list(qpx, 2, NULL)));
	BATCH(EINVAL, (ibv_wr_send(qpx), ibv_wr_set_sge_list(qpx, 3, NULL)));
	BATCH(EINVAL, ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.memory, 8));
	BATCH(EINVAL, (ibv_wr_atomic_fetch_add(qpx, b.mr->rkey, (uintptr_t)b.memory + 1, 1),
		       ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.memory, 8)));
	BATCH(EINVAL, (qpx->wr_flags = 1u << 20, ibv_wr_send(qpx),
		       ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.memory, 8)));
	BATCH(EOPNOTSUPP, (ibv_wr_send_tso(qpx, a.memory, 8, 512),
			   ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.memory, 8)));
	/* More requests than the queue has WQEs. */
	BATCH(ENOMEM, for (unsigned int i = 0; i < before.init.cap.max_send_wr; i++) {
		ibv_wr_rdma_write(qpx, b.mr->rkey, (uintptr_t)b.memory);
		ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.memory, 8);
	});
	/* After the abort no batch is open. */
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.memory, 8);
	ibv_wr_abort(qpx);
	untouched("wr_abort", __LINE__);
	CODE(EINVAL, ibv_wr_complete(qpx));
	ibv_wr_abort(qpx);
	untouched("a second wr_abort", __LINE__);
}

static void shared_receive_queues(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .max_wr = 8 };

	init.attr.max_wr = device.max_srq_wr + 1;
	NOTHING(EINVAL, ibv_create_srq(pd, &init));
	init.attr.max_wr = 4;
	init.attr.max_sge = device.max_srq_sge + 1;
	NOTHING(EINVAL, ibv_create_srq(pd, &init));
	NOTHING(EINVAL, ibv_create_srq(NULL, &init));
	NOTHING(EINVAL, ibv_create_srq(pd, NULL));
	for (int bit = 2; bit < 31; bit++)
		CODE(EINVAL, ibv_modify_srq(srq, &attr, 1 << bit));
	attr.srq_limit = before.srq.max_wr + 1;
	CODE(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	attr.max_wr = device.max_srq_wr + 1;
	CODE(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	CODE(EINVAL, ibv_modify_srq(srq, NULL, IBV_SRQ_LIMIT));
	CODE(EINVAL, ibv_query_srq(srq, NULL));
}

static void device_memory(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	unsigned int access = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;

	NEED(dm);
	for (int bit = 0; bit < 32; bit++) {
		attr.comp_mask = 1u << bit;
		NOTHING(EOPNOTSUPP, ibv_alloc_dm(context, &attr));
	}
	NOTHING(EINVAL, ibv_alloc_dm(context, NULL));
	NOTHING(EINVAL, slots()->reg_dm_mr(pd, NULL, 0, 64, access));
	NOTHING(EINVAL, slots()->reg_dm_mr(NULL, dm, 0, 64, access));
	NOTHING(EINVAL, ibv_reg_dm_mr(pd, dm, 0, 64, access & ~IBV_ACCESS_ZERO_BASED));
	NOTHING(EINVAL, ibv_reg_dm_mr(pd, dm, 0, 64, access | 1u << 31));
	CODE(EINVAL, dm->memcpy_to_dm(NULL, 0, a.memory, 4));
	CODE(EINVAL, dm->memcpy_from_dm(a.memory, NULL, 0, 4));
	CODE(EINVAL, slots()->free_dm(NULL));
	CODE(0, ibv_free_dm(dm));
	CODE(EINVAL, ibv_free_dm(dm));
}

static void unsupported_features_are_refused(void)
{
	struct ibv_counters_init_attr counters = {};
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = pd, .cq = a.cq };
	struct ibv_rwq_ind_table_init_attr table = {};
	struct ibv_flow_action_esp_attr esp = {};

	NOTHING(EOPNOTSUPP, ibv_create_counters(context, &counters));
	NOTHING(EOPNOTSUPP, ibv_create_wq(context, &wq));
	NOTHING(EOPNOTSUPP, ibv_create_rwq_ind_table(context, &table));
	NOTHING(EOPNOTSUPP, ibv_create_flow_action_esp(context, &esp));
	CODE(EOPNOTSUPP, slots()->modify_wq(NULL, NULL));
	CODE(EOPNOTSUPP, slots()->destroy_wq(NULL));
	CODE(EOPNOTSUPP, slots()->destroy_rwq_ind_table(NULL));
	CODE(EOPNOTSUPP, slots()->destroy_counters(NULL));
	CODE(EOPNOTSUPP, slots()->read_counters(NULL, NULL, 0, 0));
	CODE(EOPNOTSUPP, slots()->attach_counters_point_flow(NULL, NULL, NULL));
	CODE(EOPNOTSUPP, slots()->modify_flow_action_esp(NULL, &esp));
	CODE(EOPNOTSUPP, slots()->destroy_flow_action(NULL));
	CODE(EOPNOTSUPP, slots()->post_srq_ops(srq, NULL, NULL));
}

/* Exactly as many objects as the device's limits. */
static void limits(void)
{
	int count = 0;
	struct ibv_pd **domains = calloc(device.max_pd + 1, sizeof(*domains));

	NEED(domains);
	while (count <= device.max_pd && (domains[count] = ibv_alloc_pd(context)))
		count++;
	CHECK(errno == ENOMEM);
	/* `pd` counts as one; a parent domain does not count. */
	CHECK(count == device.max_pd - 1);
	untouched("ibv_alloc_pd", __LINE__);
	while (count--)
		CHECK(ibv_dealloc_pd(domains[count]) == 0);
	free(domains);

	struct ibv_cq **queues = calloc(device.max_cq + 1, sizeof(*queues));

	NEED(queues);
	count = 0;
	while (count <= device.max_cq && (queues[count] = ibv_create_cq(context, 1, NULL, NULL, 0)))
		count++;
	CHECK(errno == ENOMEM);
	CHECK(count == device.max_cq - 2);
	untouched("ibv_create_cq", __LINE__);
	while (count--)
		CHECK(ibv_destroy_cq(queues[count]) == 0);
	free(queues);
}

/* After a thousand refusals the objects still work. */
static void still_alive(void)
{
	post_receive(&b, 1, 0, 64);
	CHECK(post(&a, IBV_WR_SEND_WITH_IMM, 2, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	CHECK(next_wc(&b).status == IBV_WC_SUCCESS);
}

int main(void)
{
	context = open_device();
	pd = ibv_alloc_pd(context);
	NEED(pd && ibv_query_device(context, &device) == 0);
	NEED(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 8, .max_sge = 2 } };
	struct ibv_td_init_attr td_init = {};

	srq = ibv_create_srq(pd, &srq_init);
	td = ibv_alloc_td(context, &td_init);
	struct ibv_parent_domain_init_attr parent_init = { .pd = pd, .td = td };

	parent = ibv_alloc_parent_domain(context, &parent_init);
	NEED(srq && td && parent);
	make_pair(&a, &b);
	before = state();
	devices_and_ports();
	completion_queues();
	queue_pairs_at_creation();
	queue_pairs_that_live();
	work_requests();
	batches();
	shared_receive_queues();
	device_memory();
	unsupported_features_are_refused();
	limits();
	still_alive();
	free_end(&a);
	free_end(&b);
	CHECK(ibv_dealloc_pd(parent) == 0);
	CHECK(ibv_dealloc_td(td) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
	return close_pd();
}
