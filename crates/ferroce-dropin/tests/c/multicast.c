/* Multicast groups: attach, detach, destroy in every order, and one datagram to three queue pairs. */
#include "pair.h"

#include <arpa/inet.h>

enum { QKEY = 0x11223344, MEMBERS = 3 };

static struct end a, b;
static struct ibv_qp *from, *to[MEMBERS];

static struct ibv_qp *make(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UD,
		.sq_sig_all = 1,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	NEED(qp);
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return qp;
}

static union ibv_gid gid(const char *text)
{
	union ibv_gid gid;

	NEED(inet_pton(AF_INET6, text, &gid) == 1);
	return gid;
}

static void wrong_calls_are_refused(void)
{
	union ibv_gid group = gid("::ffff:239.1.2.3"), other = gid("::ffff:239.1.2.4");
	const char *none[] = { "::ffff:10.0.0.1", "::ffff:255.255.255.255", "::", "::1", "fe80::1" };
	struct ibv_device_attr device;

	CHECK(ibv_query_device(context, &device) == 0);
	CHECK(device.max_mcast_grp > 0 && device.max_mcast_qp_attach > 0);
	CHECK(device.max_total_mcast_qp_attach >= device.max_mcast_qp_attach);
	for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++) {
		union ibv_gid unicast = gid(none[i]);

		CHECK(ibv_attach_mcast(to[0], &unicast, 0) == EINVAL);
		CHECK(ibv_detach_mcast(to[0], &unicast, 0) == EINVAL);
	}
	CHECK(ibv_attach_mcast(a.qp, &group, 0) == EINVAL);
	CHECK(ibv_attach_mcast(NULL, &group, 0) == EINVAL);
	CHECK(ibv_attach_mcast(to[0], NULL, 0) == EINVAL);
	CHECK(ibv_detach_mcast(NULL, &group, 0) == EINVAL);
	CHECK(ibv_detach_mcast(to[0], NULL, 0) == EINVAL);
	CHECK(ibv_detach_mcast(to[0], &group, 0) == EINVAL);
	CHECK(ibv_attach_mcast(to[0], &group, 0) == 0);
	CHECK(ibv_detach_mcast(to[0], &other, 0) == EINVAL);
	CHECK(ibv_detach_mcast(to[1], &group, 0) == EINVAL);
	CHECK(ibv_destroy_qp(to[0]) == EBUSY);
	/* The LID is ignored; the GID may be unaligned. */
	char odd[17];

	memcpy(odd + 1, &group, 16);
	CHECK(ibv_attach_mcast(to[0], (union ibv_gid *)(odd + 1), 0xc001) == 0);
	CHECK(ibv_detach_mcast(to[0], &group, 0xc001) == 0);
	CHECK(ibv_detach_mcast(to[0], &group, 0) == EINVAL);
}

static void one_to_many(void)
{
	union ibv_gid group = gid("::ffff:239.1.2.3");
	struct ibv_ah_attr address = { .is_global = 1, .port_num = 1, .grh = { .dgid = group, .hop_limit = 1 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &address);
	struct ibv_sge sge = { .addr = (uintptr_t)a.memory, .length = 10, .lkey = a.mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.wr.ud = { .ah = ah, .remote_qpn = 0xffffff, .remote_qkey = QKEY },
	}, *bad;
	int seen = 0;

	NEED(ah);
	strcpy(a.memory, "everybody");
	for (int i = 0; i < MEMBERS; i++) {
		struct ibv_sge room = { .addr = (uintptr_t)b.memory + 100 * i, .length = 100, .lkey = b.mr->lkey };
		struct ibv_recv_wr receive = { .wr_id = i, .sg_list = &room, .num_sge = 1 }, *refused;

		CHECK(ibv_attach_mcast(to[i], &group, 0) == 0);
		NEED(!ibv_post_recv(to[i], &receive, &refused));
	}
	NEED(!ibv_post_send(from, &wr, &bad));
	CHECK(next_wc(&a).opcode == IBV_WC_SEND);
	for (int i = 0; i < MEMBERS; i++) {
		struct ibv_wc wc = next_wc(&b), back = wc;
		struct ibv_ah_attr answer;
		char *got = b.memory + 100 * wc.wr_id;

		NEED(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id < MEMBERS);
		seen |= 1 << wc.wr_id;
		CHECK(wc.byte_len == 50 && wc.qp_num == to[wc.wr_id]->qp_num && wc.src_qp == from->qp_num);
		CHECK((wc.wc_flags & IBV_WC_GRH) && !strcmp(got + 40, "everybody"));
		/* The completion has the sender's address, but no handle can be made with a group as the source. */
		CHECK(ibv_init_ah_from_wc(context, 1, &back, (struct ibv_grh *)got, &answer) == -1);
	}
	CHECK(seen == (1 << MEMBERS) - 1);
	for (int i = 0; i < MEMBERS; i++)
		CHECK(ibv_detach_mcast(to[i], &group, 0) == 0);
	CHECK(ibv_destroy_ah(ah) == 0);
}

int main(void)
{
	open_pd();
	a = make_end();
	b = make_end();
	from = make(a.cq);
	for (int i = 0; i < MEMBERS; i++)
		to[i] = make(b.cq);
	wrong_calls_are_refused();
	one_to_many();
	for (int i = 0; i < MEMBERS; i++)
		CHECK(ibv_destroy_qp(to[i]) == 0);
	CHECK(ibv_destroy_qp(from) == 0);
	return close_pair(&a, &b);
}
