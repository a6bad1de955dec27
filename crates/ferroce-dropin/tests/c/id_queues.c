/* Queue pairs, completion queues and shared receive queues of ids, and endpoints. */
#include "cm.h"

static struct ibv_qp_init_attr init_attr(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 5, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
	};
	return init;
}

static enum ibv_qp_state state_of(struct ibv_qp *qp, struct ibv_qp_attr *attr)
{
	struct ibv_qp_init_attr init;

	NEED(ibv_query_qp(qp, attr, 0, &init) == 0);
	return attr->qp_state;
}

static void connected(void)
{
	struct rdma_cm_id *id = routed_id(RDMA_PS_TCP);
	struct ibv_qp_init_attr init = init_attr(IBV_QPT_RC);
	struct ibv_pd *default_pd = id->pd;
	struct ibv_qp_attr attr;
	char buffer[64];

	NEED(rdma_create_qp(id, NULL, &init) == 0);
	NEED(id->qp && id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq_channel);
	CHECK(id->pd == default_pd && id->qp->pd == default_pd);
	CHECK(id->send_cq != id->recv_cq && id->send_cq->cq_context == id);
	CHECK(id->send_cq->channel == id->send_cq_channel && id->recv_cq->cqe >= 5);
	CHECK(init.send_cq == id->send_cq && init.recv_cq == id->recv_cq && init.cap.max_recv_wr >= 5);
	CHECK(state_of(id->qp, &attr) == IBV_QPS_INIT);
	CHECK(attr.port_num == 1 && attr.pkey_index == 0 && attr.qp_access_flags == 0);
	/* Receives can be posted at once, sends cannot. */
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof(buffer));

	NEED(mr);
	CHECK(rdma_post_recv(id, NULL, buffer, sizeof(buffer), mr) == 0);
	CHECK(rdma_post_send(id, NULL, buffer, 1, mr, 0) == -1);
	init = init_attr(IBV_QPT_RC);
	CHECK_MINUS(rdma_create_qp(id, NULL, &init), EINVAL);
	CHECK(rdma_dereg_mr(mr) == 0);

	struct ibv_cq *gone = id->send_cq;

	rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq && !id->send_cq_channel && !id->recv_cq_channel);
	CHECK(ibv_destroy_cq(gone) == EINVAL);
	rdma_destroy_qp(id);

	/* With the program's own queues and domain, which are not destroyed. */
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);

	NEED(pd && cq);
	init = init_attr(IBV_QPT_RC);
	init.send_cq = init.recv_cq = cq;
	NEED(rdma_create_qp(id, pd, &init) == 0);
	CHECK(id->qp->pd == pd && id->pd == pd && id->qp->send_cq == cq && !id->send_cq && !id->recv_cq);
	rdma_destroy_qp(id);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(rdma_destroy_id(id) == 0);
}

static void datagrams(void)
{
	struct rdma_cm_id *id = routed_id(RDMA_PS_UDP);
	struct ibv_qp_init_attr init = init_attr(IBV_QPT_UD);
	struct ibv_qp_attr attr;
	struct ibv_wc wc;
	char buffer[2][64] = {};

	NEED(rdma_create_qp(id, NULL, &init) == 0);
	CHECK(state_of(id->qp, &attr) == IBV_QPS_RTS);
	CHECK(attr.qkey == RDMA_UDP_QKEY);
	/* The queue pair is in RTS: it sends to itself over the resolved route. */
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof(buffer));
	struct ibv_ah_attr to = {
		.is_global = 1,
		.port_num = 1,
		.grh = { .dgid = id->route.path_rec->dgid, .hop_limit = id->route.path_rec->hop_limit },
	};
	struct ibv_ah *ah = ibv_create_ah(id->pd, &to);

	NEED(mr && ah);
	strcpy(buffer[0], "hello");
	NEED(rdma_post_recv(id, buffer, buffer[1], 64, mr) == 0);
	NEED(rdma_post_ud_send(id, NULL, buffer[0], 6, mr, IBV_SEND_SIGNALED, ah, id->qp->qp_num) == 0);
	NEED(rdma_get_send_comp(id, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS);
	NEED(rdma_get_recv_comp(id, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 46 && strcmp(buffer[1] + 40, "hello") == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && rdma_dereg_mr(mr) == 0);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

static void shared_receives(void)
{
	struct rdma_cm_id *id = routed_id(RDMA_PS_TCP);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 10, .max_sge = 1 } };
	struct ibv_qp_init_attr init = init_attr(IBV_QPT_RC);

	NEED(rdma_create_srq(id, NULL, &srq) == 0);
	NEED(id->srq);
	CHECK(srq.attr.max_wr >= 10 && id->srq->pd == id->pd);
	CHECK_MINUS(rdma_create_srq(id, NULL, &srq), EINVAL);
	NEED(rdma_create_qp(id, NULL, &init) == 0);
	CHECK(id->qp->srq == id->srq);
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	CHECK(!id->srq && !id->recv_cq);
	rdma_destroy_srq(id);

	struct ibv_srq_init_attr_ex xrc = { .attr = { .max_wr = 10, .max_sge = 1 },
					    .comp_mask = IBV_SRQ_INIT_ATTR_TYPE,
					    .srq_type = IBV_SRQT_XRC };
	uint32_t number = 0;

	NEED(rdma_create_srq_ex(id, &xrc) == 0);
	CHECK(id->srq && id->recv_cq && xrc.cq == id->recv_cq && xrc.xrcd);
	CHECK(ibv_get_srq_num(id->srq, &number) == 0 && number);
	rdma_destroy_srq(id);
	CHECK(!id->srq && !id->recv_cq);
	CHECK(ibv_close_xrcd(xrc.xrcd) == 0);
	CHECK(rdma_destroy_id(id) == 0);
}

static void extended(void)
{
	struct rdma_cm_id *id = routed_id(RDMA_PS_TCP);
	struct ibv_qp_init_attr_ex init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 5, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};

	NEED(rdma_create_qp_ex(id, &init) == 0);
	CHECK(ibv_qp_to_qp_ex(id->qp) && init.pd == id->pd && init.send_cq == id->send_cq);
	rdma_destroy_qp(id);
	init.send_ops_flags = ~0ull;
	init.send_cq = init.recv_cq = NULL;
	CHECK_MINUS(rdma_create_qp_ex(id, &init), EOPNOTSUPP);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq && !init.send_cq);
	CHECK(rdma_destroy_id(id) == 0);
}

static void attributes(void)
{
	struct rdma_cm_id *id = routed_id(RDMA_PS_TCP), *datagrams = routed_id(RDMA_PS_UDP), *fresh = NULL;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask = 0;

	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0);
	CHECK(mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	CHECK(attr.qp_state == IBV_QPS_INIT && attr.port_num == 1);
	CHECK(rdma_init_qp_attr(datagrams, &attr, &mask) == 0);
	CHECK(mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	CHECK(attr.qkey == RDMA_UDP_QKEY);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(rdma_init_qp_attr(datagrams, &attr, &mask) == 0);
	CHECK(mask == IBV_QP_STATE && attr.qp_state == IBV_QPS_RTR);
	/* Without a connection there are no attributes. */
	CHECK_MINUS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	CHECK_MINUS(rdma_init_qp_attr(id, NULL, &mask), EINVAL);
	CHECK_MINUS(rdma_init_qp_attr(id, &attr, NULL), EINVAL);
	CHECK_MINUS(rdma_init_qp_attr(NULL, &attr, &mask), EINVAL);
	NEED(rdma_create_id(NULL, &fresh, NULL, RDMA_PS_TCP) == 0);
	attr.qp_state = IBV_QPS_INIT;
	CHECK_MINUS(rdma_init_qp_attr(fresh, &attr, &mask), EINVAL);
	struct ibv_qp_init_attr init = init_attr(IBV_QPT_RC);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };

	/* An id without a device cannot have a queue pair; nor can NULL. */
	CHECK_MINUS(rdma_create_qp(fresh, NULL, &init), EINVAL);
	CHECK_MINUS(rdma_create_srq(fresh, NULL, &srq), EINVAL);
	CHECK_MINUS(rdma_create_qp(NULL, NULL, &init), EINVAL);
	CHECK_MINUS(rdma_create_qp(id, NULL, NULL), EINVAL);
	CHECK_MINUS(rdma_create_qp_ex(id, NULL), EINVAL);
	CHECK_MINUS(rdma_create_srq(id, NULL, NULL), EINVAL);
	CHECK_MINUS(rdma_create_srq_ex(NULL, NULL), EINVAL);
	rdma_destroy_qp(NULL);
	rdma_destroy_srq(NULL);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(datagrams) == 0 && rdma_destroy_id(fresh) == 0);
}

static void endpoints(void)
{
	struct rdma_addrinfo *info = NULL;
	struct ibv_qp_init_attr init = init_attr(IBV_QPT_UD);
	struct rdma_cm_id *id = NULL;

	NEED(rdma_getaddrinfo("127.0.0.1", "7174", NULL, &info) == 0);
	NEED(rdma_create_ep(&id, info, NULL, &init) == 0);
	CHECK(id->verbs && id->qp && id->qp->qp_type == IBV_QPT_RC && init.qp_type == IBV_QPT_RC);
	CHECK(id->route.num_paths == 1 && id->channel);
	rdma_destroy_ep(id);
	CHECK_MINUS(rdma_destroy_id(id), EINVAL);
	NEED(rdma_create_ep(&id, info, NULL, NULL) == 0);
	CHECK(!id->qp);
	rdma_destroy_ep(id);
	id = NULL;
	init.cap.max_send_wr = ~0u;
	CHECK(rdma_create_ep(&id, info, NULL, &init) == -1);
	CHECK(!id);
	CHECK_MINUS(rdma_create_ep(NULL, info, NULL, NULL), EINVAL);
	CHECK_MINUS(rdma_create_ep(&id, NULL, NULL, NULL), EINVAL);
	rdma_freeaddrinfo(info);
	NEED(rdma_getaddrinfo("203.0.113.1", "7174", NULL, &info) == 0);
	CHECK_MINUS(rdma_create_ep(&id, info, NULL, NULL), ENETUNREACH);
	rdma_freeaddrinfo(info);
	rdma_destroy_ep(NULL);
}

int main(void)
{
	raise_lo();
	connected();
	datagrams();
	shared_receives();
	extended();
	attributes();
	endpoints();
	return finish();
}
