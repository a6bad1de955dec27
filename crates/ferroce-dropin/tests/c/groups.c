/* Multicast groups of ids: joining, events, receivers, leaving. */
#include "cm.h"

/* An id, not yet a member: bound, with the group as its peer, and a queue pair. */
static struct rdma_cm_id *member(struct rdma_event_channel *channel, const char *local, const char *group)
{
	struct sockaddr_storage at = address_of(local, 0), to = address_of(group, 0);
	struct ibv_qp_init_attr init = datagram_init_attr();
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
	CHECK_MINUS(rdma_join_multicast(id, (void *)&to, NULL), EINVAL);
	NEED(rdma_bind_addr(id, (void *)&at) == 0);
	NEED(rdma_resolve_addr(id, NULL, (void *)&to, 2000) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	NEED(id->verbs && rdma_create_qp(id, NULL, &init) == 0);
	return id;
}

static struct ibv_ah *joined(struct rdma_event_channel *channel, struct rdma_cm_id *id, const char *mgid,
			     const void *context)
{
	struct rdma_cm_event *event = NULL;
	union ibv_gid gid;

	NEED(inet_pton(AF_INET6, mgid, &gid) == 1);
	NEED(rdma_get_cm_event(channel, &event) == 0);
	NEED(event->event == RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->id == id && event->status == 0 && event->listen_id == NULL);
	CHECK(event->param.ud.private_data == context && event->param.ud.private_data_len == 0);
	CHECK(event->param.ud.qp_num == 0xffffff && event->param.ud.qkey == QKEY);
	CHECK(event->param.ud.ah_attr.is_global == 1 && event->param.ud.ah_attr.port_num == 1);
	CHECK(memcmp(&event->param.ud.ah_attr.grh.dgid, &gid, 16) == 0);
	struct ibv_ah *ah = ibv_create_ah(id->pd, &event->param.ud.ah_attr);

	NEED(ah);
	CHECK(rdma_ack_cm_event(event) == 0);
	return ah;
}

static void send_to(struct rdma_cm_id *id, struct ibv_ah *ah, char *text, struct ibv_mr *mr)
{
	struct ibv_wc wc;

	NEED(rdma_post_ud_send(id, NULL, text, 64, mr, 0, ah, 0xffffff) == 0);
	NEED(rdma_get_send_comp(id, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS);
}

/* One id only sends, two receive, and one of these leaves. */
static void members(const char *local, const char *group, const char *mgid)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage to = address_of(group, 0);
	struct rdma_cm_join_mc_attr_ex attr = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
		.addr = (void *)&to,
	};
	char buffer[4][128] = {};
	struct ibv_wc wc;

	NEED(channel);
	struct rdma_cm_id *sender = member(channel, local, group), *first = member(channel, local, group),
			  *second = member(channel, local, group);
	struct ibv_mr *mr = ibv_reg_mr(sender->pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);

	NEED(mr);
	NEED(rdma_join_multicast_ex(sender, &attr, &attr) == 0);
	struct ibv_ah *ah = joined(channel, sender, mgid, &attr);

	NEED(rdma_join_multicast(first, (void *)&to, buffer) == 0);
	CHECK(ibv_destroy_ah(joined(channel, first, mgid, buffer)) == 0);
	attr.join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER;
	NEED(rdma_join_multicast_ex(second, &attr, NULL) == 0);
	CHECK(ibv_destroy_ah(joined(channel, second, mgid, NULL)) == 0);

	NEED(rdma_post_recv(sender, NULL, buffer[3], 128, mr) == 0);
	NEED(rdma_post_recv(first, NULL, buffer[1], 128, mr) == 0);
	NEED(rdma_post_recv(second, NULL, buffer[2], 128, mr) == 0);
	strcpy(buffer[0], "to all");
	send_to(sender, ah, buffer[0], mr);
	NEED(rdma_get_recv_comp(first, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == GRH + 64 && strcmp(buffer[1] + GRH, "to all") == 0);
	NEED(rdma_get_recv_comp(second, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS && strcmp(buffer[2] + GRH, "to all") == 0);

	/* Joined twice and left once: still a member. */
	NEED(rdma_join_multicast(first, (void *)&to, NULL) == 0);
	CHECK(ibv_destroy_ah(joined(channel, first, mgid, NULL)) == 0);
	CHECK(rdma_leave_multicast(first, (void *)&to) == 0);
	CHECK(rdma_leave_multicast(second, (void *)&to) == 0);
	CHECK_MINUS(rdma_leave_multicast(second, (void *)&to), EADDRNOTAVAIL);
	NEED(rdma_post_recv(first, NULL, buffer[1], 128, mr) == 0);
	NEED(rdma_post_recv(second, NULL, buffer[2], 128, mr) == 0);
	strcpy(buffer[0], "to one");
	send_to(sender, ah, buffer[0], mr);
	NEED(rdma_get_recv_comp(first, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS && strcmp(buffer[1] + GRH, "to one") == 0);
	CHECK(ibv_poll_cq(second->recv_cq, 1, &wc) == 0 && ibv_poll_cq(sender->recv_cq, 1, &wc) == 0);

	/* After leaving, an unread join event is discarded; the other memberships end with their ids. */
	NEED(rdma_join_multicast(second, (void *)&to, NULL) == 0);
	CHECK(rdma_leave_multicast(second, (void *)&to) == 0);
	CHECK(rdma_leave_multicast(sender, (void *)&to) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0);
	rdma_destroy_qp(first);
	rdma_destroy_qp(second);
	rdma_destroy_qp(sender);
	CHECK(rdma_destroy_id(first) == 0 && rdma_destroy_id(second) == 0 && rdma_destroy_id(sender) == 0);
	rdma_destroy_event_channel(channel);
}

static void wrong_calls_are_refused(void)
{
	struct sockaddr_storage group = address_of("239.9.9.1", 0), host = address_of("127.0.0.1", 0),
				any = address_of("0.0.0.0", 0);
	struct rdma_cm_join_mc_attr_ex attr = { .addr = (void *)&group };
	struct rdma_cm_id *id = NULL, *connected = NULL;
	struct sockaddr unknown = { .sa_family = 77 };

	NEED(rdma_create_id(NULL, &connected, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(connected, (void *)&host) == 0);
	CHECK_MINUS(rdma_join_multicast(connected, (void *)&group, NULL), EINVAL);
	CHECK(rdma_destroy_id(connected) == 0);

	NEED(rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP) == 0);
	CHECK_MINUS(rdma_join_multicast(id, (void *)&group, NULL), EINVAL);
	NEED(rdma_bind_addr(id, (void *)&host) == 0);
	CHECK_MINUS(rdma_join_multicast(id, (void *)&host, NULL), EINVAL);
	CHECK_MINUS(rdma_join_multicast(id, (void *)&any, NULL), EINVAL);
	CHECK_MINUS(rdma_join_multicast(id, &unknown, NULL), EINVAL);
	CHECK_MINUS(rdma_join_multicast(id, NULL, NULL), EINVAL);
	CHECK_MINUS(rdma_join_multicast(NULL, (void *)&group, NULL), EINVAL);
	CHECK_MINUS(rdma_join_multicast_ex(id, NULL, NULL), EINVAL);
	CHECK_MINUS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	CHECK_MINUS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	attr.join_flags = 2;
	CHECK_MINUS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	attr.comp_mask = 7;
	CHECK_MINUS(rdma_join_multicast_ex(id, &attr, NULL), EOPNOTSUPP);
	CHECK_MINUS(rdma_leave_multicast(id, (void *)&group), EADDRNOTAVAIL);
	CHECK_MINUS(rdma_leave_multicast(id, NULL), EINVAL);
	CHECK_MINUS(rdma_leave_multicast(NULL, (void *)&group), EINVAL);

	/* An id without a queue pair can join, too; a synchronous id waits for the event. */
	CHECK(rdma_join_multicast(id, (void *)&group, &any) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(id->event->param.ud.private_data == &any);
	CHECK(rdma_leave_multicast(id, (void *)&group) == 0);
	CHECK(rdma_destroy_id(id) == 0);
}

/* If the queue pair cannot be attached, the event has the error. */
static void failures_of_joining(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage host = address_of("127.0.0.1", 0), group = address_of("239.9.9.2", 0);
	struct ibv_qp_init_attr init = datagram_init_attr();
	struct rdma_cm_event *event = NULL;
	struct rdma_cm_id *id = NULL;

	NEED(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
	NEED(rdma_bind_addr(id, (void *)&host) == 0);
	init.qp_type = IBV_QPT_RC;
	NEED(rdma_create_qp(id, NULL, &init) == 0);
	NEED(rdma_join_multicast(id, (void *)&group, &group) == 0);
	NEED(rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->event == RDMA_CM_EVENT_MULTICAST_ERROR && event->status == -EINVAL);
	CHECK(event->param.ud.private_data == &group);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK_MINUS(rdma_leave_multicast(id, (void *)&group), EADDRNOTAVAIL);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

/* A group given as a GID. */
static void unmapped(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL;
	struct {
		uint16_t family, pkey;
		uint32_t flow;
		union ibv_gid gid;
		uint64_t sid, mask, scope;
	} group = { .family = 27 }, host = { .family = 27 };

	NEED(inet_pton(AF_INET6, "ff12:a01b:fe80::7", &group.gid) == 1);
	NEED(inet_pton(AF_INET6, "::1", &host.gid) == 1);
	NEED(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
	CHECK_MINUS(rdma_resolve_addr(id, NULL, (void *)&host, 2000), ENODEV);
	NEED(rdma_resolve_addr(id, NULL, (void *)&group, 2000) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	struct ibv_qp_init_attr init = datagram_init_attr();

	NEED(rdma_create_qp(id, NULL, &init) == 0);
	CHECK_MINUS(rdma_join_multicast(id, (void *)&host, NULL), ENODEV);
	NEED(rdma_join_multicast(id, (void *)&group, NULL) == 0);
	CHECK(ibv_destroy_ah(joined(channel, id, "ff12:a01b:fe80::7", NULL)) == 0);
	CHECK(rdma_leave_multicast(id, (void *)&group) == 0);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	raise_lo();
	members("127.0.0.1", "239.9.9.9", "::ffff:239.9.9.9");
	/* Linux has no route for IPv6 groups on lo. */
	if (system("ip -6 route add local ff00::/8 dev lo") == 0)
		members("::1", "ff0e::9:9", "ff0e::9:9");
	wrong_calls_are_refused();
	failures_of_joining();
	unmapped();
	return finish();
}
