/* Mistakes of programs, each of which costs one line on standard error that names the attribute, its value and the cure. The test looks
 * at the lines. */
#include "pair.h"

static struct ibv_qp *made(struct ibv_cq *cq, uint32_t wrs)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = wrs, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return ibv_create_qp(pd, &init);
}

static int modified(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	return ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE);
}

int main(void)
{
	enum { TO_INIT = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS };
	enum { TO_RTR = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			IBV_QP_MIN_RNR_TIMER };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .num_sge = 0 }, *bad;
	struct ibv_recv_wr receive = { .num_sge = 2, .sg_list = (struct ibv_sge[2]){} }, *bad_receive;
	struct ibv_cq *cq;

	open_pd();
	NEED((cq = ibv_create_cq(context, 8, NULL, NULL, 0)));
	CHECK_NULL(ibv_create_cq(context, 1 << 30, NULL, NULL, 0), EINVAL);
	CHECK_NULL(made(cq, 1 << 30), EINVAL);

	struct ibv_qp *qp = made(cq, 4);
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 2 };
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64, .sgid_index = 77 } },
	};

	NEED(qp && !ibv_query_gid(context, 1, 0, &rtr.ah_attr.grh.dgid));
	CHECK(ibv_post_send(qp, &send, &bad) == EINVAL);
	CHECK(modified(qp, rtr, TO_RTR) == EINVAL);
	CHECK(modified(qp, init, TO_INIT) == EINVAL);
	init.port_num = 1;
	CHECK(modified(qp, init, TO_INIT & ~IBV_QP_PORT) == EINVAL);
	NEED(modified(qp, init, TO_INIT) == 0);
	for (int times = 0; times < 3; times++)
		CHECK(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL);
	CHECK(modified(qp, rtr, TO_RTR) == EINVAL);
	rtr.ah_attr.grh.sgid_index = 0;
	rtr.min_rnr_timer = 40;
	CHECK(modified(qp, rtr, TO_RTR) == EINVAL);
	rtr.min_rnr_timer = 12;
	CHECK(modified(qp, rtr, TO_RTR | IBV_QP_SQ_PSN | 1 << 25) == EINVAL);
	rtr.ah_attr.is_global = 0;
	CHECK(modified(qp, rtr, TO_RTR) == EINVAL);
	rtr.ah_attr.is_global = 1;
	NEED(modified(qp, rtr, TO_RTR) == 0);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK_NULL(ibv_reg_mr(pd, (void *)4096, 4096, 0), EFAULT);
	CHECK_NULL(ibv_reg_mr(pd, &rtr, sizeof(rtr), IBV_ACCESS_REMOTE_WRITE), EINVAL);
	CHECK(ibv_attach_mcast(qp, &rtr.ah_attr.grh.dgid, 0) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	return close_pd();
}
