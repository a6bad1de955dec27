/* UD and UC: address handles, both ways of posting, the fields of completions, and refused requests. */
#include "pair.h"

#include <arpa/inet.h>

enum { QKEY = 0x11223344, GRH = 40 };

static struct end a, b;
static struct ibv_qp *from, *to;

static struct ibv_qp *make(enum ibv_qp_type type, struct ibv_cq *cq, uint64_t ops)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 },
		.qp_type = type,
		.sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = ops,
	};

	return ibv_create_qp_ex(context, &attr);
}

static void ud_to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_qp_init_attr init;

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT) == EINVAL);
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 77;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS) == EINVAL);
	memset(&attr, 0, sizeof(attr));
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_QKEY, &init) == 0);
	CHECK(attr.qkey == QKEY && attr.sq_psn == 77 && attr.qp_state == IBV_QPS_RTS);
}

static struct ibv_ah_attr local(uint8_t index)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };

	NEED(!ibv_query_gid(context, 1, index, &attr.grh.dgid));
	attr.grh.sgid_index = index;
	return attr;
}

static void wrong_address_handles_are_refused(void)
{
	struct ibv_ah_attr attr = local(0), other = local(1);
	struct ibv_device_attr device;

	CHECK(ibv_query_device(context, &device) == 0 && device.max_ah > 0);
	CHECK_NULL(ibv_create_ah(NULL, &attr), EINVAL);
	CHECK_NULL(ibv_create_ah(pd, NULL), EINVAL);
#define BAD(change)                                                                              \
	do {                                                                                     \
		attr = local(0);                                                                 \
		change;                                                                          \
		CHECK_NULL(ibv_create_ah(pd, &attr), EINVAL);                                    \
	} while (0)
	BAD(attr.is_global = 0);
	BAD(attr.port_num = 0);
	BAD(attr.port_num = 2);
	BAD(attr.grh.sgid_index = 250);
	BAD(attr.grh.dgid = other.grh.dgid);
	BAD(memset(&attr.grh.dgid, 0, 16));
	attr = local(0);

	struct ibv_pd *own = ibv_alloc_pd(context);
	struct ibv_ah *ah = ibv_create_ah(own, &attr);

	NEED(ah);
	CHECK(ah->context == context && ah->pd == own);
	CHECK(ibv_dealloc_pd(own) == EBUSY);
	CHECK(ibv_destroy_ah(ah) == 0);
	CHECK(ibv_destroy_ah(ah) == EINVAL);
	CHECK(ibv_destroy_ah(NULL) == EINVAL);
	CHECK(ibv_dealloc_pd(own) == 0);
}

static void receive(uint64_t wr_id, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)b.memory, .length = length, .lkey = b.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	NEED(!ibv_post_recv(to, &wr, &bad));
}

static int post_to(struct ibv_ah *ah, enum ibv_wr_opcode opcode, uint32_t qkey, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)a.memory, .length = length, .lkey = a.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .imm_data = htonl(0xabcd),
		.wr.ud = { .ah = ah, .remote_qpn = to->qp_num, .remote_qkey = qkey },
	}, *bad = NULL;
	int ret = ibv_post_send(from, &wr, &bad);

	CHECK(ret ? bad == &wr : bad == NULL);
	return ret;
}

static void datagrams(uint8_t index)
{
	struct ibv_ah_attr attr = local(index), answer;
	struct ibv_ah *ah = ibv_create_ah(pd, &attr), *back;
	struct ibv_pd *own = ibv_alloc_pd(context);
	struct ibv_ah *foreign = ibv_create_ah(own, &attr);
	struct ibv_wc wc;

	NEED(ah && foreign);
	strcpy(a.memory, "a datagram");
	receive(9, ROOM);
	CHECK(post_to(ah, IBV_WR_SEND_WITH_IMM, QKEY, 11) == 0);
	wc = next_wc(&a);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND && wc.wr_id == 5);
	wc = next_wc(&b);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == 9);
	CHECK(wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && wc.imm_data == htonl(0xabcd));
	CHECK(wc.byte_len == GRH + 11 && wc.src_qp == from->qp_num && wc.qp_num == to->qp_num);
	/* The IP version, where UCX before 1.19 reads it. */
	CHECK(wc.sl == (index ? 9 : 10));
	CHECK(wc.slid == 0 && wc.pkey_index == 0 && wc.dlid_path_bits == 0);
	CHECK(memcmp(b.memory + GRH, "a datagram", 11) == 0);

	memset(&answer, 0xff, sizeof(answer));
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, (void *)b.memory, &answer) == 0);
	CHECK(answer.is_global == 1 && answer.port_num == 1 && answer.grh.sgid_index == index);
	CHECK(memcmp(&answer.grh.dgid, &attr.grh.dgid, 16) == 0 && answer.grh.hop_limit == 64);
	CHECK(answer.dlid == 0 && answer.sl == 0 && answer.grh.traffic_class == 0);
	back = ibv_create_ah_from_wc(pd, &wc, (void *)b.memory, 1);
	NEED(back);
	CHECK_NULL(ibv_create_ah_from_wc(pd, &wc, (void *)b.memory, 2), EINVAL);
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, NULL, &answer) == -1 && errno == EINVAL);
	memset(b.memory, 0, GRH);
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, (void *)b.memory, &answer) == -1 && errno == EINVAL);
	wc.wc_flags = 0;
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, (void *)b.memory, &answer) == 0 && answer.is_global == 0);
	CHECK_NULL(ibv_create_ah_from_wc(pd, &wc, (void *)b.memory, 1), EINVAL);

	/* The call fails, and the queue pair stays usable. */
	CHECK(post_to(NULL, IBV_WR_SEND, QKEY, 1) == EINVAL);
	CHECK(post_to(foreign, IBV_WR_SEND, QKEY, 1) == EINVAL);
	CHECK(post_to(ah, IBV_WR_RDMA_WRITE, QKEY, 1) == EINVAL);
	CHECK(post_to(ah, IBV_WR_SEND, QKEY, 4097) == EINVAL);
	CHECK(ibv_destroy_ah(ah) == 0);
	CHECK(post_to(ah, IBV_WR_SEND, QKEY, 1) == EINVAL);
	receive(10, ROOM);
	CHECK(post_to(back, IBV_WR_SEND, 0x80000000, 1) == 0); /* the queue pair's own key */
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	CHECK(next_wc(&b).byte_len == GRH + 1);
	/* A datagram that is too long is dropped; the work request receives the next one that fits. */
	receive(11, GRH + 4);
	CHECK(post_to(back, IBV_WR_SEND, QKEY, 5) == 0);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	CHECK(post_to(back, IBV_WR_SEND, QKEY, 4) == 0);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	wc = next_wc(&b);
	CHECK(wc.wr_id == 11 && wc.status == IBV_WC_SUCCESS && wc.byte_len == GRH + 4);
	CHECK(ibv_destroy_ah(back) == 0);
	CHECK(ibv_destroy_ah(foreign) == 0);
	CHECK(ibv_dealloc_pd(own) == 0);
}

static void built_by_functions(void)
{
	struct ibv_ah_attr attr = local(0);
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(from);
	struct ibv_poll_cq_attr poll_attr = {};

	NEED(ah && qpx);
	receive(20, ROOM);
	receive(21, ROOM);
	ibv_wr_start(qpx);
	qpx->wr_id = 30;
	ibv_wr_send(qpx);
	ibv_wr_set_ud_addr(qpx, ah, to->qp_num, QKEY);
	ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.memory, 7);
	qpx->wr_id = 31;
	ibv_wr_send_imm(qpx, htonl(8));
	ibv_wr_set_inline_data(qpx, a.memory, 9);
	ibv_wr_set_ud_addr(qpx, ah, to->qp_num, QKEY); /* the other way round */
	CHECK(ibv_wr_complete(qpx) == 0);
	CHECK(next_wc(&a).wr_id == 30 && next_wc(&a).wr_id == 31);
	for (uint32_t i = 0; i < 2; i++) {
		while (ibv_start_poll(b.cq_ex, &poll_attr))
			;
		CHECK(b.cq_ex->status == IBV_WC_SUCCESS && b.cq_ex->wr_id == 20 + i);
		CHECK(ibv_wc_read_byte_len(b.cq_ex) == GRH + 7 + 2 * i);
		CHECK(ibv_wc_read_src_qp(b.cq_ex) == from->qp_num);
		CHECK(ibv_wc_read_slid(b.cq_ex) == 0 && ibv_wc_read_sl(b.cq_ex) == 10);
		CHECK(ibv_wc_read_dlid_path_bits(b.cq_ex) == 0);
		CHECK(ibv_wc_read_wc_flags(b.cq_ex) == (IBV_WC_GRH | (i ? IBV_WC_WITH_IMM : 0)));
		ibv_end_poll(b.cq_ex);
	}
	/* No destination; an invalid handle; an address on a request that needs none. */
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.memory, 7);
	CHECK(ibv_wr_complete(qpx) == EINVAL);
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_ud_addr(qpx, NULL, to->qp_num, QKEY);
	ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.memory, 7);
	CHECK(ibv_wr_complete(qpx) == EINVAL);
	ibv_wr_start(qpx);
	ibv_wr_set_ud_addr(qpx, ah, to->qp_num, QKEY);
	CHECK(ibv_wr_complete(qpx) == EINVAL);
	CHECK(ibv_destroy_ah(ah) == 0);
}

static void operations_of_each_type(void)
{
	CHECK_NULL(make(IBV_QPT_UD, a.cq, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE), EOPNOTSUPP);
	CHECK_NULL(make(IBV_QPT_UC, a.cq, IBV_QP_EX_WITH_RDMA_READ), EOPNOTSUPP);
	CHECK_NULL(make(IBV_QPT_UC, a.cq, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD), EOPNOTSUPP);
	CHECK_NULL(make(IBV_QPT_UC, a.cq, IBV_QP_EX_WITH_SEND_WITH_INV), EOPNOTSUPP);
	struct ibv_qp *qp = make(IBV_QPT_UC, a.cq,
				 IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
					 IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);
	NEED(qp);
	CHECK(ibv_destroy_qp(qp) == 0);
}

int main(void)
{
	open_pd();
	a = make_end();
	b = make_end();
	from = make(IBV_QPT_UD, a.cq, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
	to = make(IBV_QPT_UD, b.cq, IBV_QP_EX_WITH_SEND);
	NEED(from && to);
	ud_to_rts(from);
	ud_to_rts(to);
	wrong_address_handles_are_refused();
	datagrams(0);
	datagrams(1);
	built_by_functions();
	operations_of_each_type();
	CHECK(ibv_destroy_qp(from) == 0);
	CHECK(ibv_destroy_qp(to) == 0);
	return close_pair(&a, &b);
}
