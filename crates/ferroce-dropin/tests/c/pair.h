/* Two RC queue pairs of one process, connected to each other over the first GID. */
#ifndef PAIR_H
#define PAIR_H

#include "check.h"

#include <poll.h>

enum { ROOM = 1 << 16 };

struct end {
	struct ibv_comp_channel *channel;
	struct ibv_cq_ex *cq_ex;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_qp_ex *qpx;
	struct ibv_mr *mr;
	char *memory;
};

/* Of queue pairs that are connected from now on. */
static int retry_cnt = 7, rnr_retry = 7, timeout_code = 12;
static enum ibv_mtu path_mtu = IBV_MTU_1024;
static uint32_t first_psn = 0x123456;

static struct ibv_context *context;
static struct ibv_pd *pd;

/* The device and a protection domain of it. */
static inline void open_pd(void)
{
	context = open_device();
	pd = ibv_alloc_pd(context);
	NEED(pd);
}

/* The end of a program that began with `open_pd`. */
static inline int close_pd(void)
{
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	return finish();
}

static inline struct end make_end(void)
{
	struct end end = { .channel = ibv_create_comp_channel(context) };
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 64,
		.cq_context = &context,
		.channel = end.channel,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
	};
	NEED(end.channel);
	end.cq_ex = ibv_create_cq_ex(context, &cq_attr);
	NEED(end.cq_ex);
	end.cq = ibv_cq_ex_to_cq(end.cq_ex);
	CHECK(end.cq->cqe >= 64 && end.cq->channel == end.channel && end.cq->cq_context == &context);

	struct ibv_qp_init_attr_ex attr = {
		.qp_context = &pd,
		.send_cq = end.cq,
		.recv_cq = end.cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 128 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				  IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
				  IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
				  IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_BIND_MW |
				  IBV_QP_EX_WITH_ATOMIC_WRITE | 0x800 /* flush, which Debian 12 has no name for */,
	};
	end.qp = ibv_create_qp_ex(context, &attr);
	NEED(end.qp);
	end.qpx = ibv_qp_to_qp_ex(end.qp);
	NEED(end.qpx);
	CHECK((void *)end.qpx == (void *)end.qp && end.qp->qp_context == &pd && end.qp->pd == pd);
	CHECK(end.qp->send_cq == end.cq && end.qp->recv_cq == end.cq && end.qp->srq == NULL);
	CHECK(attr.cap.max_send_wr >= 16 && attr.cap.max_inline_data >= 128);

	end.memory = aligned_alloc(4096, ROOM);
	NEED(end.memory);
	memset(end.memory, 0, ROOM);
	end.mr = ibv_reg_mr(pd, end.memory, ROOM,
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				    IBV_ACCESS_REMOTE_ATOMIC);
	NEED(end.mr);
	return end;
}

static inline void to_rts(struct end *end, uint32_t dest_qpn)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	NEED(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	CHECK(end->qp->state == IBV_QPS_INIT);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = path_mtu,
		.dest_qp_num = dest_qpn,
		.rq_psn = first_psn,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } },
	};
	NEED(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	NEED(!ibv_modify_qp(end->qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	CHECK(end->qp->state == IBV_QPS_RTR);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.sq_psn = first_psn,
		.timeout = timeout_code,
		.retry_cnt = retry_cnt,
		.rnr_retry = rnr_retry,
		.max_rd_atomic = 4,
	};
	NEED(!ibv_modify_qp(end->qp, &attr,
			    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_MAX_QP_RD_ATOMIC));
	CHECK(end->qp->state == IBV_QPS_RTS);
}

static inline void free_end(struct end *end)
{
	CHECK(ibv_destroy_qp(end->qp) == 0);
	CHECK(ibv_dereg_mr(end->mr) == 0);
	CHECK(ibv_destroy_cq(end->cq) == 0);
	CHECK(ibv_destroy_comp_channel(end->channel) == 0);
	free(end->memory);
}

static inline void connect_ends(struct end *a, struct end *b)
{
	to_rts(a, b->qp->qp_num);
	to_rts(b, a->qp->qp_num);
}

static inline void reconnect_ends(struct end *a, struct end *b)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };

	NEED(!ibv_modify_qp(a->qp, &reset, IBV_QP_STATE) && !ibv_modify_qp(b->qp, &reset, IBV_QP_STATE));
	connect_ends(a, b);
}

static inline void make_pair(struct end *a, struct end *b)
{
	*a = make_end();
	*b = make_end();
	connect_ends(a, b);
}

/* The device and two connected ends. */
static inline void open_pair(struct end *a, struct end *b)
{
	open_pd();
	make_pair(a, b);
}

/* The end of a program that began with `open_pair`. */
static inline int close_pair(struct end *a, struct end *b)
{
	free_end(a);
	free_end(b);
	return close_pd();
}

/* Polls until one completion arrives. */
static inline struct ibv_wc next_wc(struct end *end)
{
	struct ibv_wc wc;
	int got;

	alarm(20);
	do
		got = ibv_poll_cq(end->cq, 1, &wc);
	while (got == 0);
	alarm(0);
	NEED(got == 1);
	return wc;
}

static inline void post_receive(struct end *end, uint64_t wr_id, size_t at, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)end->memory + at, .length = length, .lkey = end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(end->qp, &wr, &bad) == 0);
}

/* A work request of any memory of this end. */
static inline int post_of(struct end *end, struct ibv_mr *mr, void *at, enum ibv_wr_opcode opcode, uint64_t wr_id, uint32_t length,
			  struct end *peer, size_t peer_at, unsigned int flags)
{
	struct ibv_sge sge = { .addr = (uintptr_t)at, .length = length, .lkey = mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = flags,
		.imm_data = htobe32(0x11223344),
	}, *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)peer->memory + peer_at;
		wr.wr.atomic.rkey = peer->mr->rkey;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)peer->memory + peer_at;
		wr.wr.rdma.rkey = peer->mr->rkey;
	}
	return ibv_post_send(end->qp, &wr, &bad);
}

static inline int post(struct end *end, enum ibv_wr_opcode opcode, uint64_t wr_id, size_t at, uint32_t length,
		       struct end *peer, size_t peer_at, unsigned int flags)
{
	return post_of(end, end->mr, end->memory + at, opcode, wr_id, length, peer, peer_at, flags);
}

#endif
