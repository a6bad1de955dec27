/* Address vectors: which fields are taken, replaced and checked (Linux 6.12, ib_uverbs_modify_qp, ib_uverbs_create_ah and
 * ib_resolve_unicast_gid_dmac), and hosts that do not answer for their address. */
#include "cm.h"
#include "threads.h"

#include <poll.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static int run(const char *command)
{
	int status = system(command);

	if (status)
		fprintf(stderr, "%s: %d\n", command, status);
	return status;
}

/* Each kind of route that takes no packet, on both families, and the kernel's error. */
static const struct {
	const char *kind, *v4, *v6;
	int error;
} refusing[] = {
	{ "unreachable", "10.84.3.5", "2001:db8:3::5", EHOSTUNREACH },
	{ "prohibit", "10.84.4.5", "2001:db8:4::5", EACCES },
	{ "blackhole", "10.84.5.5", "2001:db8:5::5", EINVAL },
	{ "throw", "10.84.6.5", "2001:db8:6::5", ENETUNREACH },
};

static struct ibv_ah_attr towards(const char *text)
{
	struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1, .sl = 3,
		.grh = { .hop_limit = 1, .traffic_class = 96, .flow_label = 0x54321 },
	};
	char mapped[64];
	int index = -1;

	snprintf(mapped, sizeof(mapped), strchr(text, ':') ? "%s" : "::ffff:%s", text);
	NEED(inet_pton(AF_INET6, mapped, attr.grh.dgid.raw) == 1);
	for (int i = 0; i < 8 && index < 0; i++) {
		union ibv_gid gid;

		if (ibv_query_gid(context, 1, i, &gid))
			continue;
		if (strchr(text, ':') ? gid.raw[0] == 0x20 : gid.raw[10] == 0xff && gid.raw[12] == 10)
			index = i;
	}
	NEED(index >= 0);
	attr.grh.sgid_index = index;
	return attr;
}

/* The result of the change to RTR, and the address vector that the queue pair then reports. */
static int connected(const struct ibv_ah_attr *ah, struct ibv_ah_attr *reported)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	NEED(qp);
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 5, .ah_attr = *ah };
	int result = ibv_modify_qp(qp, &attr,
				   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);

	NEED(!ibv_query_qp(qp, &attr, IBV_QP_AV, &init));
	CHECK(attr.qp_state == (result ? IBV_QPS_INIT : IBV_QPS_RTR));
	*reported = attr.ah_attr;
	CHECK(!ibv_destroy_qp(qp));
	return result;
}

static void fields(void)
{
	static const struct {
		const char *to;
		uint8_t port, global, hops, index;
		int result;
		uint8_t reported;
	} rows[] = {
		/* The route's hop limit replaces the program's. */
		{ "10.84.0.2", 1, 1, 1, 0, 0, 64 },	     { "10.84.0.2", 1, 1, 0, 0, 0, 64 },
		{ "10.84.0.2", 1, 1, 255, 0, 0, 64 },	     { "10.84.1.5", 1, 1, 1, 0, 0, 33 },
		{ "10.84.0.1", 1, 1, 1, 0, 0, 64 },
		/* Port, is_global, sgid_index and dgid are checked. */
		{ "10.84.0.2", 0, 1, 64, 0, EINVAL, 0 },     { "10.84.0.2", 2, 1, 64, 0, EINVAL, 0 },
		{ "10.84.0.2", 1, 0, 64, 0, EINVAL, 0 },     { "10.84.0.2", 1, 1, 64, 200, EINVAL, 0 },
		/* The router for this one, and the host itself, do not answer. */
		{ "10.84.0.99", 1, 1, 64, 0, ETIMEDOUT, 0 }, { "10.84.2.5", 1, 1, 64, 0, ETIMEDOUT, 0 },
		/* No route. */
		{ "203.0.113.7", 1, 1, 64, 0, ENETUNREACH, 0 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct ibv_ah_attr ah = towards(rows[i].to), got;

		ah.port_num = rows[i].port;
		ah.is_global = rows[i].global;
		ah.grh.hop_limit = rows[i].hops;
		ah.grh.sgid_index += rows[i].index;
		int result = connected(&ah, &got);

		if (result != rows[i].result || (!result && got.grh.hop_limit != rows[i].reported))
			fprintf(stderr, "row %zu: %d, hop limit %d\n", i, result, got.grh.hop_limit);
		CHECK(result == rows[i].result);
		if (!result) {
			CHECK(got.grh.hop_limit == rows[i].reported);
			/* Taken as they are. */
			CHECK(got.sl == 3 && got.grh.traffic_class == 96 && got.grh.flow_label == 0x54321);
			CHECK(got.port_num == 1 && got.is_global == 1 && got.grh.sgid_index == ah.grh.sgid_index);
			CHECK(!memcmp(&got.grh.dgid, &ah.grh.dgid, 16));
		}
		errno = 0;
		struct ibv_ah *handle = ibv_create_ah(pd, &ah);

		CHECK(handle ? !result && !ibv_destroy_ah(handle) : errno == result);
	}
}

static void refusals(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	NEED(channel);
	for (size_t i = 0; i < 2 * sizeof(refusing) / sizeof(*refusing); i++) {
		const char *to = i % 2 ? refusing[i / 2].v6 : refusing[i / 2].v4;
		struct sockaddr_storage from = address_of(i % 2 ? "2001:db8::1" : "10.84.0.1", 0), address = address_of(to, 7190);
		struct ibv_ah_attr ah = towards(to), got;
		int error = refusing[i / 2].error, result = connected(&ah, &got);

		if (result != error)
			fprintf(stderr, "%s: %d\n", to, result);
		CHECK(result == error);
		CHECK_NULL(ibv_create_ah(pd, &ah), error);
		for (int bound = 0; bound < 2; bound++) {
			struct rdma_cm_id *id = NULL;

			NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
			NEED(!rdma_resolve_addr(id, bound ? (void *)&from : NULL, (void *)&address, 200));
			expect_event(channel, id, RDMA_CM_EVENT_ADDR_ERROR, -error);
			CHECK(!rdma_destroy_id(id));
		}
	}
	rdma_destroy_event_channel(channel);
}

static struct rdma_cm_id *asks(struct rdma_event_channel *channel, const char *text, int milliseconds)
{
	struct sockaddr_storage to = address_of(text, 7190);
	struct rdma_cm_id *id = NULL;

	NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(id, NULL, (void *)&to, milliseconds));
	return id;
}

static void ids(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage dead = address_of("10.84.0.99", 7190);
	struct rdma_cm_id *synchronous = NULL;

	NEED(channel);
	struct rdma_cm_id *id = asks(channel, "10.84.0.99", 200);

	CHECK_MINUS(rdma_resolve_route(id, 200), EINVAL);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
	/* The id can be used again. */
	NEED(!resolve_addr(id, "10.84.0.2", 7190));
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(!rdma_destroy_id(id));

	/* An id that ends meanwhile gets no event; a host that answers meanwhile is found. */
	CHECK(!rdma_destroy_id(asks(channel, "10.84.0.99", 3600000)));
	id = asks(channel, "10.84.0.98", 3600000);
	CHECK(poll(&(struct pollfd){ .fd = channel->fd, .events = POLLIN }, 1, 0) == 0);
	NEED(!run("ip neigh replace 10.84.0.98 lladdr 02:00:00:00:00:98 dev d0 nud permanent"));
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(!rdma_destroy_id(id));

	NEED(!rdma_create_id(NULL, &synchronous, NULL, RDMA_PS_TCP));
	CHECK_MINUS(rdma_resolve_addr(synchronous, NULL, (void *)&dead, 200), ETIMEDOUT);
	CHECK(!rdma_destroy_id(synchronous));

	/* Without ARP nobody has to answer. */
	NEED(!run("ip link set d0 arp off"));
	id = asks(channel, "10.84.0.97", 3600000);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* A thousand ids wait at once, by one thread, and each is told its own end. */
static void many(void)
{
	enum { IDS = 1000, ENDING = 20 };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *ids[IDS];
	char text[32];

	NEED(channel);
	struct rdma_cm_id *first = asks(channel, "10.84.0.100", 3600000);
	int before = threads();

	for (int i = 0; i < IDS; i++) {
		snprintf(text, sizeof(text), "10.84.0.%d", 101 + i % 100);
		ids[i] = asks(channel, text, i < ENDING ? 1 : 3600000);
	}
	CHECK(threads() <= before);
	for (int i = 0; i < ENDING; i++) {
		struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_ADDR_ERROR);

		CHECK(event->status == -ETIMEDOUT);
		CHECK(!rdma_ack_cm_event(event));
	}
	NEED(!run("ip neigh replace 10.84.0.200 lladdr 02:00:00:00:02:00 dev d0 nud permanent"));
	for (int i = 99; i < IDS; i += 100)
		NEED(!rdma_ack_cm_event(next_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED)));
	CHECK(poll(&(struct pollfd){ .fd = channel->fd, .events = POLLIN }, 1, 0) == 0);
	for (int i = 0; i < IDS; i++)
		CHECK(!rdma_destroy_id(ids[i]));
	CHECK(!rdma_destroy_id(first));
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	if (run("ip link set lo up && ip link add d0 type veth peer name d1 && ip addr add 10.84.0.1/24 dev d0 && "
		"ip link set d0 up && ip link set d1 up && "
		"ip neigh replace 10.84.0.2 lladdr 02:00:00:00:00:02 dev d0 nud permanent && "
		"ip route add 10.84.1.0/24 via 10.84.0.2 hoplimit 33 && ip route add 10.84.2.0/24 via 10.84.0.96 && "
		"ip addr add 2001:db8::1/64 dev d0 nodad"))
		return 77;
	for (size_t i = 0; i < sizeof(refusing) / sizeof(*refusing); i++) {
		char command[128];

		snprintf(command, sizeof(command), "ip route add %s %s/32 && ip -6 route add %s %s/128", refusing[i].kind,
			 refusing[i].v4, refusing[i].kind, refusing[i].v6);
		if (run(command))
			return 77;
	}
	setenv("FERROCE_NETDEV", "d0", 1);
	context = open_device();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	NEED(pd && cq);
	fields();
	refusals();
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	many();
	ids();
	return finish();
}
