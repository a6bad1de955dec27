/* For every pair of objects of which one uses the other: destroying the used one is EBUSY, changes nothing, and succeeds
 * after the user is destroyed. */
#include "pair.h"

#include <fcntl.h>

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_xrcd *xrcd;
static struct ibv_td *td;
static char memory[4096];

/* Creates `user`, which keeps `used`, and destroys it. */
#define KEEPS(type, user, end_user, used, end_used)                                              \
	do {                                                                                     \
		type *made = user;                                                               \
		NEED(made);                                                                      \
		CHECK(end_used(used) == EBUSY);                                                  \
		CHECK(end_used(used) == EBUSY);                                                  \
		CHECK(end_user(made) == 0);                                                      \
	} while (0)

static struct ibv_qp *qp_of(struct ibv_pd *domain, struct ibv_cq *send, struct ibv_cq *recv, struct ibv_srq *from)
{
	struct ibv_qp_init_attr init = {
		.send_cq = send, .recv_cq = recv, .srq = from, .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1, .max_send_sge = 1 },
	};

	return ibv_create_qp(domain, &init);
}

static struct ibv_qp *xrc_qp(enum ibv_qp_type type, struct ibv_pd *domain, struct ibv_cq *send)
{
	struct ibv_qp_init_attr_ex init = { .qp_type = type };

	if (type == IBV_QPT_XRC_RECV) {
		init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
		init.xrcd = xrcd;
	} else {
		init.comp_mask = IBV_QP_INIT_ATTR_PD;
		init.pd = domain;
		init.send_cq = send;
		init.cap.max_send_wr = init.cap.max_send_sge = 1;
	}
	return ibv_create_qp_ex(context, &init);
}

static struct ibv_srq *xrc_srq(struct ibv_pd *domain, struct ibv_cq *queue)
{
	struct ibv_srq_init_attr_ex init = {
		.attr = { .max_wr = 1, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = domain, .xrcd = xrcd, .cq = queue,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
	};

	return ibv_create_srq_ex(context, &init);
}

static struct ibv_cq *cq_in(struct ibv_pd *parent)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent };
	struct ibv_cq_ex *made = ibv_create_cq_ex(context, &attr);

	return made ? ibv_cq_ex_to_cq(made) : NULL;
}

static struct ibv_pd *parent_of(struct ibv_pd *domain, struct ibv_td *thread)
{
	struct ibv_parent_domain_init_attr attr = { .pd = domain, .td = thread };

	return ibv_alloc_parent_domain(context, &attr);
}

static struct ibv_ah *address(struct ibv_pd *domain)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };

	NEED(!ibv_query_gid(context, 1, 0, &to.grh.dgid));
	return ibv_create_ah(domain, &to);
}

static struct ibv_srq *plain_srq(struct ibv_pd *domain)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };

	return ibv_create_srq(domain, &init);
}

static void domains(void)
{
	struct ibv_pd *domain = ibv_alloc_pd(context), *parent;

	NEED(domain);
	KEEPS(struct ibv_mr, ibv_reg_mr(domain, memory, 64, 0), ibv_dereg_mr, domain, ibv_dealloc_pd);
	KEEPS(struct ibv_mr, ibv_alloc_null_mr(domain), ibv_dereg_mr, domain, ibv_dealloc_pd);
	KEEPS(struct ibv_mw, ibv_alloc_mw(domain, IBV_MW_TYPE_1), ibv_dealloc_mw, domain, ibv_dealloc_pd);
	KEEPS(struct ibv_mw, ibv_alloc_mw(domain, IBV_MW_TYPE_2), ibv_dealloc_mw, domain, ibv_dealloc_pd);
	KEEPS(struct ibv_ah, address(domain), ibv_destroy_ah, domain, ibv_dealloc_pd);
	KEEPS(struct ibv_srq, plain_srq(domain), ibv_destroy_srq, domain, ibv_dealloc_pd);
	KEEPS(struct ibv_srq, xrc_srq(domain, cq), ibv_destroy_srq, domain, ibv_dealloc_pd);
	KEEPS(struct ibv_qp, qp_of(domain, cq, cq, NULL), ibv_destroy_qp, domain, ibv_dealloc_pd);
	KEEPS(struct ibv_qp, xrc_qp(IBV_QPT_XRC_SEND, domain, cq), ibv_destroy_qp, domain, ibv_dealloc_pd);
	KEEPS(struct ibv_pd, parent_of(domain, NULL), ibv_dealloc_pd, domain, ibv_dealloc_pd);

	parent = parent_of(domain, td);
	NEED(parent);
	KEEPS(struct ibv_cq, cq_in(parent), ibv_destroy_cq, parent, ibv_dealloc_pd);
	KEEPS(struct ibv_mr, ibv_reg_mr(parent, memory, 64, 0), ibv_dereg_mr, parent, ibv_dealloc_pd);
	KEEPS(struct ibv_mw, ibv_alloc_mw(parent, IBV_MW_TYPE_1), ibv_dealloc_mw, parent, ibv_dealloc_pd);
	KEEPS(struct ibv_ah, address(parent), ibv_destroy_ah, parent, ibv_dealloc_pd);
	KEEPS(struct ibv_srq, plain_srq(parent), ibv_destroy_srq, parent, ibv_dealloc_pd);
	KEEPS(struct ibv_qp, qp_of(parent, cq, cq, NULL), ibv_destroy_qp, parent, ibv_dealloc_pd);
	CHECK(ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(domain) == EBUSY);
	CHECK(ibv_dealloc_pd(parent) == 0);
	CHECK(ibv_dealloc_pd(domain) == 0);
}

static void queues(void)
{
	struct ibv_cq *own = ibv_create_cq(context, 4, NULL, channel, 0);

	NEED(own);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	KEEPS(struct ibv_qp, qp_of(pd, own, cq, NULL), ibv_destroy_qp, own, ibv_destroy_cq);
	KEEPS(struct ibv_qp, qp_of(pd, cq, own, NULL), ibv_destroy_qp, own, ibv_destroy_cq);
	KEEPS(struct ibv_qp, xrc_qp(IBV_QPT_XRC_SEND, pd, own), ibv_destroy_qp, own, ibv_destroy_cq);
	KEEPS(struct ibv_srq, xrc_srq(pd, own), ibv_destroy_srq, own, ibv_destroy_cq);
	CHECK(ibv_destroy_cq(own) == 0);
	KEEPS(struct ibv_qp, qp_of(pd, cq, cq, srq), ibv_destroy_qp, srq, ibv_destroy_srq);
	KEEPS(struct ibv_srq, xrc_srq(pd, cq), ibv_destroy_srq, xrcd, ibv_close_xrcd);
	KEEPS(struct ibv_qp, xrc_qp(IBV_QPT_XRC_RECV, NULL, NULL), ibv_destroy_qp, xrcd, ibv_close_xrcd);
}

/* A window keeps the region that it is bound to. */
static void windows(void)
{
	struct end a, b;
	struct ibv_mr *region;
	struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);

	make_pair(&a, &b);
	region = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	NEED(window && region);
	struct ibv_mw_bind bind = {
		.wr_id = 3, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = region, .addr = (uintptr_t)memory, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE },
	};

	CHECK(ibv_bind_mw(a.qp, window, &bind) == 0);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(region) == EBUSY);
	CHECK(ibv_dereg_mr(region) == EBUSY);
	CHECK(ibv_dealloc_mw(window) == 0);
	CHECK(ibv_dereg_mr(region) == 0);
	free_end(&a);
	free_end(&b);
}

/* A queue pair in a multicast group cannot be destroyed until it leaves. */
static void groups(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 239, [13] = 1, [14] = 2, [15] = 3 } };

	NEED(qp);
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	CHECK(ibv_attach_mcast(qp, &gid, 0) == 0);
	CHECK(ibv_destroy_qp(qp) == EBUSY);
	CHECK(ibv_detach_mcast(qp, &gid, 0) == 0);
	CHECK(ibv_detach_mcast(qp, &gid, 0) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
}

int main(void)
{
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT,
	};
	struct ibv_td_init_attr thread = {};

	context = open_device();
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	xrcd = ibv_open_xrcd(context, &domain);
	td = ibv_alloc_td(context, &thread);
	NEED(pd && channel && cq && xrcd && td);
	srq = plain_srq(pd);
	NEED(srq);
	domains();
	queues();
	windows();
	groups();
	CHECK(ibv_dealloc_td(td) == 0 && ibv_destroy_srq(srq) == 0 && ibv_close_xrcd(xrcd) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return finish();
}
