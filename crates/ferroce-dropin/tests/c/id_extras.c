/* Calls of librdmacm after Debian 12's version: events of the program's own, asynchronous name resolution; vendor options;
 * removed devices. */
#include "cm.h"

#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>

enum { ADDRINFO_RESOLVED = 16, ADDRINFO_ERROR = 17, USER = 18, INTERNAL = 19, RAI_SA = 16, RAI_DNS = 32 };

typedef int write_event(struct rdma_cm_id *id, int event, int status, uint64_t arg);
typedef int resolve(struct rdma_cm_id *id, const char *node, const char *service, const struct rdma_addrinfo *hints);
typedef int query(struct rdma_cm_id *id, struct rdma_addrinfo **info);

static write_event *rdma_write_cm_event;
static resolve *rdma_resolve_addrinfo;
static query *rdma_query_addrinfo;

static void own_events(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event = NULL;
	struct rdma_cm_id *id = NULL;

	NEED(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK_MINUS(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
	CHECK_MINUS(rdma_write_cm_event(NULL, USER, 0, 0), EINVAL);
	for (int kind = USER; kind <= INTERNAL; kind++) {
		CHECK(rdma_write_cm_event(id, kind, 0x11223344, 0x55667788aabbccdd) == 0);
		NEED(rdma_get_cm_event(channel, &event) == 0);
		CHECK(event->id == id && (int)event->event == kind && event->status == 0x11223344);
		/* Both kinds of parameters begin at `param.arg`. */
		CHECK(memcmp(&event->param, &(uint64_t){ 0x55667788aabbccdd }, 8) == 0);
		CHECK(rdma_ack_cm_event(event) == 0);
	}
	CHECK(rdma_write_cm_event(id, USER, 0, 0) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

static void check_found(struct rdma_cm_id *id, int port)
{
	struct rdma_addrinfo *info[2] = {};

	for (int i = 0; i < 2; i++) {
		NEED(rdma_query_addrinfo(id, &info[i]) == 0 && info[i]);
		const struct sockaddr_in *to = (void *)info[i]->ai_dst_addr;

		CHECK(info[i]->ai_family == AF_INET && info[i]->ai_qp_type == IBV_QPT_UD);
		CHECK(to && to->sin_port == htons(port) && to->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
		CHECK(info[i]->ai_dst_len == sizeof(*to) && !info[i]->ai_next);
	}
	CHECK(info[0] != info[1] && info[0]->ai_dst_addr != info[1]->ai_dst_addr);
	rdma_freeaddrinfo(info[0]);
	rdma_freeaddrinfo(info[1]);
}

static void names(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST | RAI_DNS, .ai_port_space = RDMA_PS_UDP };
	struct rdma_cm_event *event = NULL;
	struct rdma_addrinfo *info = NULL;
	struct rdma_cm_id *id = NULL, *waits = NULL;

	NEED(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
	CHECK_MINUS(rdma_query_addrinfo(id, &info), EINVAL);
	CHECK_MINUS(rdma_query_addrinfo(id, NULL), EINVAL);
	CHECK_MINUS(rdma_resolve_addrinfo(id, NULL, NULL, NULL), EINVAL);
	CHECK_MINUS(rdma_resolve_addrinfo(NULL, "127.0.0.1", "1", NULL), EINVAL);
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "7290", &hints) == 0);
	expect_event(channel, id, (enum rdma_cm_event_type)ADDRINFO_RESOLVED, 0);
	check_found(id, 7290);
	CHECK(rdma_resolve_addrinfo(id, "no number", "7290", &hints) == 0);
	NEED(rdma_get_cm_event(channel, &event) == 0);
	CHECK((int)event->event == ADDRINFO_ERROR && event->status == EAI_NONAME);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK_MINUS(rdma_query_addrinfo(id, &info), EINVAL);
	/* An id that is destroyed meanwhile gets no event. */
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "7290", &hints) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);

	NEED(rdma_create_id(NULL, &waits, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_resolve_addrinfo(waits, "127.0.0.1", "7291", &hints) == 0);
	check_found(waits, 7291);
	hints.ai_flags = RAI_SA;
	CHECK_MINUS(rdma_resolve_addrinfo(waits, NULL, "1", &hints), EOPNOTSUPP);
	CHECK(rdma_destroy_id(waits) == 0);
}

/* Both ends exchange their options, and one rejects the other's. */
static void vendor_options(void)
{
	struct rdma_event_channel *passive = rdma_create_event_channel(), *active = rdma_create_event_channel();
	struct sockaddr_storage at = address_of("127.0.0.1", 7292);
	struct ibv_ece ours = { .vendor_id = 0xabcdef, .options = 0xfedcba98 }, theirs = { .vendor_id = 1, .options = 2 };
	struct rdma_conn_param param = { .qp_num = 0x123456, .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *event = NULL;
	struct rdma_cm_id *listen = NULL, *client = NULL;
	struct ibv_ece got;

	NEED(passive && active && rdma_create_id(passive, &listen, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listen, (void *)&at) == 0 && rdma_listen(listen, 4) == 0);
	for (int refuse = 0; refuse < 2; refuse++) {
		NEED(rdma_create_id(active, &client, NULL, RDMA_PS_TCP) == 0);
		NEED(resolve_addr(client, "127.0.0.1", 7292) == 0);
		expect_event(active, client, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
		NEED(rdma_resolve_route(client, 2000) == 0);
		expect_event(active, client, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
		CHECK_MINUS(rdma_set_local_ece(client, NULL), EINVAL);
		CHECK_MINUS(rdma_set_local_ece(NULL, &ours), EINVAL);
		CHECK_MINUS(rdma_set_local_ece(client, &(struct ibv_ece){}), EINVAL);
		CHECK_MINUS(rdma_set_local_ece(client, &(struct ibv_ece){ .vendor_id = 1 << 24 }), EINVAL);
		CHECK_MINUS(rdma_set_local_ece(client, &(struct ibv_ece){ .vendor_id = 1, .comp_mask = 1 }), EINVAL);
		CHECK_MINUS(rdma_get_remote_ece(client, NULL), EINVAL);
		CHECK(rdma_set_local_ece(client, &ours) == 0);
		CHECK(rdma_get_remote_ece(client, &got) == 0 && got.vendor_id == 0 && got.options == 0);
		param.qp_num++;
		NEED(rdma_connect(client, &param) == 0);
		NEED(rdma_get_cm_event(passive, &event) == 0);
		NEED(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_cm_id *server = event->id;

		CHECK(rdma_get_remote_ece(server, &got) == 0);
		CHECK(got.vendor_id == 0xabcdef && got.options == 0xfedcba98 && got.comp_mask == 0);
		CHECK(rdma_set_local_ece(server, &theirs) == 0);
		CHECK(rdma_ack_cm_event(event) == 0);
		if (refuse) {
			CHECK(rdma_reject_ece(server, "no", 3) == 0);
			NEED(rdma_get_cm_event(active, &event) == 0);
			/* "Vendor option not supported". */
			CHECK(event->event == RDMA_CM_EVENT_REJECTED && event->status == 35);
			CHECK(strcmp(event->param.conn.private_data, "no") == 0);
		} else {
			param.qp_num += 0x1000;
			CHECK(rdma_accept(server, &param) == 0);
			NEED(rdma_get_cm_event(active, &event) == 0);
			CHECK(event->event == RDMA_CM_EVENT_CONNECT_RESPONSE);
			CHECK(rdma_get_remote_ece(client, &got) == 0 && got.vendor_id == 1 && got.options == 2);
			CHECK(rdma_establish(client) == 0);
			expect_event(passive, server, RDMA_CM_EVENT_ESTABLISHED, 0);
			/* Each end gets the disconnect event, and the event of the end of TIMEWAIT. */
			CHECK(rdma_disconnect(client) == 0);
			expect_event(passive, server, RDMA_CM_EVENT_DISCONNECTED, 0);
			CHECK(rdma_disconnect(server) == 0);
			expect_event(active, client, RDMA_CM_EVENT_DISCONNECTED, 0);
			expect_event(active, client, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
			expect_event(passive, server, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
		}
		CHECK(rdma_ack_cm_event(event) == 0);
		CHECK(rdma_destroy_id(client) == 0 && rdma_destroy_id(server) == 0);
	}
	CHECK_MINUS(rdma_reject_ece(NULL, NULL, 0), EINVAL);
	CHECK(rdma_destroy_id(listen) == 0);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

/* A device is removed with its interface: its ids get the event, others do not. */
static void devices_may_go(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage at = address_of("10.84.0.1", 0), lo = address_of("127.0.0.1", 0);
	struct rdma_cm_id *bound = NULL, *listens = NULL, *other = NULL;
	struct pollfd quiet;

	NEED(channel && rdma_create_id(channel, &bound, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_create_id(channel, &listens, NULL, RDMA_PS_UDP) == 0);
	NEED(rdma_create_id(channel, &other, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(bound, (void *)&at) == 0 && rdma_bind_addr(other, (void *)&lo) == 0);
	NEED(rdma_bind_addr(listens, (void *)&at) == 0 && rdma_listen(listens, 1) == 0);
	CHECK(bound->verbs && bound->verbs == listens->verbs && bound->verbs != other->verbs);
	NEED(system("ip link del d0") == 0);
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_event *event = NULL;

		NEED(rdma_get_cm_event(channel, &event) == 0);
		CHECK(event->event == RDMA_CM_EVENT_DEVICE_REMOVAL && event->status == 0);
		CHECK(event->id == bound || event->id == listens);
		CHECK(rdma_ack_cm_event(event) == 0);
	}
	quiet = (struct pollfd){ .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&quiet, 1, 0) == 0);
	CHECK(rdma_destroy_id(bound) == 0 && rdma_destroy_id(listens) == 0 && rdma_destroy_id(other) == 0);
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	int veth = !system("ip link add d0 type veth peer name d1 && ip addr add 10.84.0.1/24 dev d0 && "
			   "ip link set d0 up && ip link set d1 up");

	if (veth)
		setenv("FERROCE_NETDEV", "d0", 1);
	raise_lo();
	rdma_write_cm_event = dlsym(RTLD_DEFAULT, "rdma_write_cm_event");
	rdma_resolve_addrinfo = dlsym(RTLD_DEFAULT, "rdma_resolve_addrinfo");
	rdma_query_addrinfo = dlsym(RTLD_DEFAULT, "rdma_query_addrinfo");
	NEED(rdma_write_cm_event && rdma_resolve_addrinfo && rdma_query_addrinfo);
	own_events();
	names();
	vendor_options();
	if (veth)
		devices_may_go();
	return finish();
}
