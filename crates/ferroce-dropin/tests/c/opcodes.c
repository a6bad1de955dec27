/* Every opcode on every type of queue pair, posted by both interfaces, which accept the same ones. An operation that a type
 * lacks is EINVAL when posted, and EOPNOTSUPP when a queue pair is created for it. The queue pairs are in the error state,
 * so accepted requests complete at once. */
#include "pair.h"

static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_mw *mw;
static struct ibv_ah *ah;
static uint64_t memory[8];

static const struct {
	enum ibv_wr_opcode opcode;
	uint64_t flag;
	const char *types; /* by their letters below */
} OPCODES[] = {
	{ IBV_WR_SEND, IBV_QP_EX_WITH_SEND, "RCDX" },
	{ IBV_WR_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_IMM, "RCDX" },
	{ IBV_WR_SEND_WITH_INV, IBV_QP_EX_WITH_SEND_WITH_INV, "RX" },
	{ IBV_WR_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE, "RCX" },
	{ IBV_WR_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, "RCX" },
	{ IBV_WR_RDMA_READ, IBV_QP_EX_WITH_RDMA_READ, "RX" },
	{ IBV_WR_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, "RX" },
	{ IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, "RX" },
	{ IBV_WR_LOCAL_INV, IBV_QP_EX_WITH_LOCAL_INV, "RCX" },
	{ IBV_WR_BIND_MW, IBV_QP_EX_WITH_BIND_MW, "RCX" },
	{ IBV_WR_TSO, IBV_QP_EX_WITH_TSO, "" },
	{ IBV_WR_ATOMIC_WRITE, IBV_QP_EX_WITH_ATOMIC_WRITE, "RX" },
};

static const struct {
	enum ibv_qp_type type;
	char letter;
} TYPES[] = { { IBV_QPT_RC, 'R' }, { IBV_QPT_UC, 'C' }, { IBV_QPT_UD, 'D' }, { IBV_QPT_XRC_SEND, 'X' } };

static struct ibv_qp *make(enum ibv_qp_type type, uint64_t flags)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = type == IBV_QPT_XRC_SEND ? NULL : cq, .qp_type = type, .pd = pd, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_send_sge = 2, .max_inline_data = 16 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = flags,
	};

	if (type != IBV_QPT_XRC_SEND)
		init.cap.max_recv_wr = init.cap.max_recv_sge = 1;
	errno = 0;
	return ibv_create_qp_ex(context, &init);
}

/* Through RTS, where the depth of READs and atomics is set. */
static void spoil(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = 1, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 1, .timeout = 14, .retry_cnt = 1, .rnr_retry = 1, .max_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } },
	};
	int ud = qp->qp_type == IBV_QPT_UD, rc = qp->qp_type == IBV_QPT_RC, xrc = qp->qp_type == IBV_QPT_XRC_SEND;

	NEED(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	NEED(!ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
	attr.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | (ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
				    (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
	attr.qp_state = IBV_QPS_RTS;
	NEED(!ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_SQ_PSN |
				    (rc || xrc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
							 IBV_QP_MAX_QP_RD_ATOMIC
					       : 0)));
	attr.qp_state = IBV_QPS_ERR;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

/* The result of a post: an accepted request completes as flushed, a refused one does not complete. */
static int accepted(const char *how, int line, int result)
{
	struct ibv_wc wc = {};
	int got = ibv_poll_cq(cq, 1, &wc);

	if ((result == 0) != (got == 1) || (got == 1 && (wc.status != IBV_WC_WR_FLUSH_ERR || wc.wr_id != 7)) || got < 0) {
		fprintf(stderr, "%s:%d: %s returned %d and completed %d\n", __FILE__, line, how, result, got);
		failures++;
	}
	return result == 0;
}

static int old_way(struct ibv_qp *qp, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 7, .opcode = opcode, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;

	if (opcode == IBV_WR_LOCAL_INV || opcode == IBV_WR_BIND_MW)
		wr.num_sge = 0;
	if (qp->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = 1;
	} else if (opcode == IBV_WR_BIND_MW) {
		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
		wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
			.mr = mr, .addr = (uintptr_t)memory, .length = 8, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	} else {
		/* The unions of RDMA and of atomics have the same beginning. */
		wr.wr.rdma.remote_addr = (uintptr_t)memory;
		wr.wr.rdma.rkey = mr->rkey;
		if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
			wr.wr.atomic.rkey = mr->rkey;
	}
	int result = ibv_post_send(qp, &wr, &bad);

	CHECK(result == 0 || result == EINVAL || result == EOPNOTSUPP);
	CHECK(result == 0 || bad == &wr);
	return accepted("ibv_post_send", __LINE__, result);
}

static int new_way(struct ibv_qp *qp, enum ibv_wr_opcode opcode)
{
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);
	struct ibv_mw_bind_info bind = {
		.mr = mr, .addr = (uintptr_t)memory, .length = 8, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	uintptr_t remote = (uintptr_t)memory;
	int data = 1;

	NEED(qpx);
	ibv_wr_start(qpx);
	qpx->wr_id = 7;
	qpx->wr_flags = 0;
	switch (opcode) {
	case IBV_WR_SEND:
		ibv_wr_send(qpx);
		break;
	case IBV_WR_SEND_WITH_IMM:
		ibv_wr_send_imm(qpx, htobe32(9));
		break;
	case IBV_WR_SEND_WITH_INV:
		ibv_wr_send_inv(qpx, mr->rkey);
		break;
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(qpx, mr->rkey, remote);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(qpx, mr->rkey, remote, htobe32(9));
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(qpx, mr->rkey, remote);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		ibv_wr_atomic_cmp_swp(qpx, mr->rkey, remote, 1, 2);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		ibv_wr_atomic_fetch_add(qpx, mr->rkey, remote, 1);
		break;
	case IBV_WR_LOCAL_INV:
		ibv_wr_local_inv(qpx, mr->rkey);
		data = 0;
		break;
	case IBV_WR_BIND_MW:
		ibv_wr_bind_mw(qpx, mw, ibv_inc_rkey(mw->rkey), &bind);
		data = 0;
		break;
	case IBV_WR_TSO:
		ibv_wr_send_tso(qpx, memory, 8, 512);
		break;
	case IBV_WR_ATOMIC_WRITE:
		ibv_wr_atomic_write(qpx, mr->rkey, remote, memory);
		data = 0;
		break;
	default:
		break;
	}
	if (data && qp->qp_type == IBV_QPT_UD)
		ibv_wr_set_ud_addr(qpx, ah, 1, 0);
	if (qp->qp_type == IBV_QPT_XRC_SEND && opcode != IBV_WR_LOCAL_INV && opcode != IBV_WR_BIND_MW)
		ibv_wr_set_xrc_srqn(qpx, 1);
	if (data)
		ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, 8);
	int result = ibv_wr_complete(qpx);

	CHECK(result == 0 || result == EINVAL || result == EOPNOTSUPP);
	return accepted("ibv_wr_complete", __LINE__, result);
}

int main(void)
{
	context = open_device();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	NEED(pd && cq);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };

	NEED(mr && mw && !ibv_query_gid(context, 1, 0, &to.grh.dgid));
	ah = ibv_create_ah(pd, &to);
	NEED(ah);
	for (size_t t = 0; t < sizeof(TYPES) / sizeof(*TYPES); t++) {
		struct ibv_qp *all = make(TYPES[t].type, IBV_QP_EX_WITH_SEND);

		NEED(all);
		spoil(all);
		for (size_t i = 0; i < sizeof(OPCODES) / sizeof(*OPCODES); i++) {
			int known = strchr(OPCODES[i].types, TYPES[t].letter) != NULL;
			struct ibv_qp *own = make(TYPES[t].type, OPCODES[i].flag);

			CHECK(own || errno == EOPNOTSUPP);
			int old = old_way(all, OPCODES[i].opcode), new = new_way(own ? own : all, OPCODES[i].opcode);

			if (own) {
				spoil(own);
				new = new_way(own, OPCODES[i].opcode);
				CHECK(ibv_destroy_qp(own) == 0);
			}
			if (old != known || new != known || (own != NULL) != known) {
				fprintf(stderr, "type %c, opcode %d: should %sbe known; post_send %d, wr_* %d, creation %d\n",
					TYPES[t].letter, OPCODES[i].opcode, known ? "" : "not ", old, new, own != NULL);
				failures++;
			}
		}
		CHECK(ibv_destroy_qp(all) == 0);
	}
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dealloc_mw(mw) == 0 && ibv_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return finish();
}
