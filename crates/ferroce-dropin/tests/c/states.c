/* ibv_query_qp is correct in every state of every service; sq_sig_all; the effect of RESET. */
#include "pair.h"

#include <linux/capability.h>
#include <sys/syscall.h>

static struct ibv_cq *send_cq, *recv_cq;
static int marker;

static struct ibv_qp_attr query(struct ibv_qp *qp, enum ibv_qp_state state, struct ibv_qp_init_attr *init)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0xa5, sizeof(attr));
	memset(init, 0xa5, sizeof(*init));
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, init) == 0);
	CHECK(attr.qp_state == state && attr.cur_qp_state == state && qp->state == state);
	CHECK(init->qp_context == &marker && init->send_cq == send_cq && init->recv_cq == recv_cq && init->srq == NULL);
	CHECK(init->qp_type == qp->qp_type && init->sq_sig_all == 1);
	CHECK(init->cap.max_send_wr >= 7 && init->cap.max_recv_wr >= 5 && init->cap.max_send_sge >= 3);
	CHECK(init->cap.max_recv_sge >= 2 && init->cap.max_inline_data >= 60);
	CHECK(!memcmp(&attr.cap, &init->cap, sizeof(attr.cap)));
	CHECK(attr.path_mig_state == IBV_MIG_MIGRATED && attr.alt_port_num == 0 && attr.rate_limit == 0);
	return attr;
}

static struct ibv_qp *make(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.qp_context = &marker, .send_cq = send_cq, .recv_cq = recv_cq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 7, .max_recv_wr = 5, .max_send_sge = 3, .max_recv_sge = 2, .max_inline_data = 60 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	NEED(qp);
	return qp;
}

/* A queue pair of either call has room for inline data where its SGEs would be, and SGEs where its inline data would be. */
static void sizes_are_rounded_up(void)
{
	static const struct { uint32_t sge, inline_data, least_sge, least_inline; } cases[] = {
		{ 1, 0, 1, 16 }, { 4, 0, 4, 64 }, { 1, 8, 1, 16 }, { 1, 100, 6, 100 }, { 2, 200, 12, 200 }, { 32, 1, 32, 512 },
	};

	for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(*cases); i++) {
		uint32_t sge = cases[i / 2].sge, inline_data = cases[i / 2].inline_data;
		struct ibv_qp_init_attr_ex init = {
			.send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 5, .max_recv_wr = 100, .max_send_sge = sge, .max_recv_sge = 3,
				 .max_inline_data = inline_data },
			.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd,
		};
		struct ibv_qp *qp = i % 2 ? ibv_create_qp_ex(context, &init) : ibv_create_qp(pd, (void *)&init);
		struct ibv_qp_init_attr got;
		struct ibv_qp_attr attr;

		NEED(qp && !ibv_query_qp(qp, &attr, IBV_QP_CAP, &got));
		CHECK(!memcmp(&attr.cap, &init.cap, sizeof(attr.cap)) && !memcmp(&got.cap, &init.cap, sizeof(got.cap)));
		CHECK(init.cap.max_send_sge == cases[i / 2].least_sge);
		CHECK(init.cap.max_inline_data == cases[i / 2].least_inline);
		CHECK(init.cap.max_send_wr == 8 && init.cap.max_recv_wr == 128 && init.cap.max_recv_sge == 3);
		CHECK(!ibv_destroy_qp(qp));
	}

	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 100, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_cq *cq = ibv_create_cq(context, 100, NULL, NULL, 0);

	NEED(srq && cq);
	CHECK(srq_init.attr.max_wr == 128 && cq->cqe == 128);
	CHECK(!ibv_resize_cq(cq, 300) && cq->cqe == 512);
	CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
}

static void connected(enum ibv_qp_type type)
{
	struct ibv_qp *qp = make(type);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr = query(qp, IBV_QPS_RESET, &init), to;
	int rc = type == IBV_QPT_RC;

	CHECK(attr.sq_draining == 0 && attr.dest_qp_num == 0);
	to = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	NEED(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = query(qp, IBV_QPS_INIT, &init);
	CHECK(attr.port_num == 1 && attr.pkey_index == 0 && attr.qp_access_flags == IBV_ACCESS_REMOTE_WRITE);

	to = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_512, .dest_qp_num = 0x123456, .rq_psn = 0xabcdef,
		.max_dest_rd_atomic = 3, .min_rnr_timer = 9,
		.ah_attr = { .is_global = 1, .port_num = 1, .sl = 3,
			     .grh = { .hop_limit = 17, .traffic_class = 96, .flow_label = 0x54321 } },
	};
	NEED(!ibv_query_gid(context, 1, 0, &to.ah_attr.grh.dgid));
	NEED(!ibv_modify_qp(qp, &to,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
	attr = query(qp, IBV_QPS_RTR, &init);
	CHECK(attr.path_mtu == IBV_MTU_512 && attr.dest_qp_num == 0x123456 && attr.rq_psn == 0xabcdef);
	CHECK(attr.ah_attr.is_global == 1 && attr.ah_attr.port_num == 1 && attr.ah_attr.sl == 3);
	/* The hop limit of unicast is the route's. */
	CHECK(attr.ah_attr.grh.hop_limit == 64 && attr.ah_attr.grh.traffic_class == 96);
	CHECK(attr.ah_attr.grh.flow_label == 0x54321 && attr.ah_attr.grh.sgid_index == 0);
	CHECK(!memcmp(&attr.ah_attr.grh.dgid, &to.ah_attr.grh.dgid, 16));
	CHECK(!rc || (attr.max_dest_rd_atomic == 3 && attr.min_rnr_timer == 9));

	to = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .sq_psn = 0xfffffe, .timeout = 13, .retry_cnt = 5, .rnr_retry = 6, .max_rd_atomic = 2,
	};
	NEED(!ibv_modify_qp(qp, &to,
			    IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
									  IBV_QP_MAX_QP_RD_ATOMIC
								: 0)));
	attr = query(qp, IBV_QPS_RTS, &init);
	CHECK(attr.sq_psn == 0xfffffe && attr.sq_draining == 0 && attr.qp_access_flags == IBV_ACCESS_REMOTE_WRITE);
	CHECK(!rc || (attr.timeout == 13 && attr.retry_cnt == 5 && attr.rnr_retry == 6 && attr.max_rd_atomic == 2));

	to = (struct ibv_qp_attr){ .qp_state = IBV_QPS_SQD };
	CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE) == 0);
	attr = query(qp, IBV_QPS_SQD, &init);
	CHECK(attr.sq_draining == 0);
	/* In SQD, drained, the path may change. */
	to.ah_attr = attr.ah_attr;
	to.ah_attr.grh.traffic_class = 32;
	CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV) == 0);
	attr = query(qp, IBV_QPS_SQD, &init);
	CHECK(attr.ah_attr.grh.traffic_class == 32 && attr.dest_qp_num == 0x123456);

	to.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE) == 0);
	query(qp, IBV_QPS_ERR, &init);
	to.qp_state = IBV_QPS_RESET;
	CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE) == 0);
	attr = query(qp, IBV_QPS_RESET, &init);
	CHECK(attr.dest_qp_num == 0 && attr.rq_psn == 0 && attr.sq_psn == 0);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
static struct __user_cap_data_struct sets[2];

static int has_net_raw(void)
{
	NEED(!syscall(SYS_capget, &header, sets));
	return (sets[0].effective >> CAP_NET_RAW) & 1;
}

static void drop_net_raw(void)
{
	sets[0].effective &= ~(1u << CAP_NET_RAW);
	NEED(!syscall(SYS_capset, &header, sets));
}

static void datagrams(void)
{
	struct ibv_qp *qp = make(IBV_QPT_UD);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr, to = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11112222 };

	query(qp, IBV_QPS_RESET, &init);
	NEED(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr = query(qp, IBV_QPS_INIT, &init);
	CHECK(attr.qkey == 0x11112222 && attr.port_num == 1);
	to.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(qp, &to, IBV_QP_STATE));
	query(qp, IBV_QPS_RTR, &init);
	to.qp_state = IBV_QPS_RTS;
	to.sq_psn = 77;
	NEED(!ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN));
	attr = query(qp, IBV_QPS_RTS, &init);
	CHECK(attr.sq_psn == 77 && attr.qkey == 0x11112222);
	to.qkey = 0x33334444;
	CHECK(ibv_modify_qp(qp, &to, IBV_QP_QKEY) == 0);
	CHECK(query(qp, IBV_QPS_RTS, &init).qkey == 0x33334444);
	/* A Q_Key with the highest bit needs CAP_NET_RAW. */
	to.qkey = 0x80010000;
	CHECK(ibv_modify_qp(qp, &to, IBV_QP_QKEY) == (has_net_raw() ? 0 : EPERM));
	if (has_net_raw()) {
		CHECK(query(qp, IBV_QPS_RTS, &init).qkey == 0x80010000);
		drop_net_raw();
		to.qkey = 0x80010001;
		CHECK(ibv_modify_qp(qp, &to, IBV_QP_QKEY) == EPERM);
		CHECK(query(qp, IBV_QPS_RTS, &init).qkey == 0x80010000);
		to.qkey = 0x7fffffff;
		CHECK(ibv_modify_qp(qp, &to, IBV_QP_QKEY) == 0);
	}
	to.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE) == 0);
	query(qp, IBV_QPS_ERR, &init);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* PSNs advance with packets; unsignaled requests complete only if the queue pair signals all. */
static void traffic_shows(void)
{
	struct end a = make_end(), b = make_end();
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;

	connect_ends(&a, &b);
	/* Three packets of 1024, then one. */
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 1, 0, 3000, &b, 0, 0) == 0);
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 2, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
	wc = next_wc(&a);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 2);
	CHECK(ibv_query_qp(a.qp, &attr, 0, &init) == 0 && attr.sq_psn == 0x123456 + 4 && init.sq_sig_all == 0);
	CHECK(ibv_query_qp(b.qp, &attr, 0, &init) == 0 && attr.rq_psn == 0x123456 + 4);
	free_end(&a);
	free_end(&b);

	struct ibv_qp_init_attr all = {
		.send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	a = make_end();
	b = make_end();
	CHECK(ibv_destroy_qp(a.qp) == 0);
	a.qp = ibv_create_qp(pd, &all);
	NEED(a.qp);
	struct ibv_cq *own = a.cq;

	a.cq = send_cq;
	connect_ends(&a, &b);
	for (int i = 0; i < 5; i++)
		CHECK(post(&a, IBV_WR_RDMA_WRITE, i, 0, 8, &b, 0, 0) == 0);
	for (int i = 0; i < 5; i++)
		CHECK(next_wc(&a).wr_id == (uint64_t)i);
	/* A reset discards the contents of the queues. */
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 9, 0, 8, &b, 0, 0) == 0);
	attr.qp_state = IBV_QPS_RESET;
	CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
	CHECK(ibv_poll_cq(send_cq, 1, &wc) == 0);
	a.cq = own;
	free_end(&a);
	free_end(&b);
}

int main(void)
{
	context = open_device();
	pd = ibv_alloc_pd(context);
	send_cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	recv_cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	NEED(pd && send_cq && recv_cq);
	sizes_are_rounded_up();
	connected(IBV_QPT_RC);
	connected(IBV_QPT_UC);
	datagrams();
	traffic_shows();
	CHECK(ibv_destroy_cq(send_cq) == 0 && ibv_destroy_cq(recv_cq) == 0);
	return close_pd();
}
