/* RDMA_CM_EVENT_ADDR_CHANGE: ids get it when the interface of their address gets another hardware address. */
#include "cm.h"

#include <fcntl.h>
#include <poll.h>

enum { PORT = 7175 };

static int run(const char *command)
{
	return system(command);
}

static struct rdma_event_channel *new_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	NEED(channel);
	return channel;
}

/* An id bound to an address, with an event channel of its own. */
static struct rdma_cm_id *bound_to(const char *text, int port)
{
	struct sockaddr_storage at = address_of(text, port);
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(new_channel(), &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(id, (struct sockaddr *)&at) == 0);
	return id;
}

static int is_quiet(struct rdma_cm_id *id)
{
	struct pollfd poller = { .fd = id->channel->fd, .events = POLLIN };

	return poll(&poller, 1, 0) == 0;
}

int main(void)
{
	if (run("ip link set lo up && ip link add va type veth peer name vb && ip addr add 10.9.0.1/24 dev va &&"
		" ip link set va up && ip link set vb up && ip link set va address 02:00:00:00:09:00")) {
		fprintf(stderr, "there is no veth here whose hardware address can be changed\n");
		return 77;
	}
	NEED(setenv("FERROCE_NETDEV", "va", 1) == 0);

	struct rdma_cm_id *listener = bound_to("10.9.0.1", PORT);
	struct rdma_cm_id *anywhere = bound_to("0.0.0.0", PORT + 1), *elsewhere = bound_to("127.0.0.1", 0);
	struct rdma_cm_id *active = NULL, *synchronous = NULL;

	NEED(rdma_listen(listener, 1) == 0);
	NEED(rdma_create_id(new_channel(), &active, NULL, RDMA_PS_TCP) == 0);
	NEED(resolve_addr(active, "10.9.0.1", PORT) == 0);
	expect_event(active->channel, active, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	NEED(rdma_create_id(NULL, &synchronous, NULL, RDMA_PS_TCP) == 0);
	NEED(resolve_addr(synchronous, "10.9.0.1", PORT) == 0);

	/* After the second change, the events of the first have arrived, too. */
	static const char *const changes[] = { "ip link set va address 02:00:00:00:09:01",
					       "ip link set va address 02:00:00:00:09:02" };
	for (int i = 0; i < 2; i++) {
		NEED(run(changes[i]) == 0);
		expect_event(listener->channel, listener, RDMA_CM_EVENT_ADDR_CHANGE, 0);
		expect_event(active->channel, active, RDMA_CM_EVENT_ADDR_CHANGE, 0);
	}
	CHECK(is_quiet(listener) && is_quiet(active));
	CHECK(is_quiet(anywhere) && is_quiet(elsewhere) && is_quiet(synchronous));

	/* The event is a hint: the ids stay usable. */
	CHECK(rdma_resolve_route(active, 2000) == 0);
	expect_event(active->channel, active, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	CHECK(rdma_resolve_route(synchronous, 2000) == 0);
	struct rdma_conn_param param = { .qp_num = 1, .retry_count = 7 };
	CHECK(rdma_connect(active, &param) == 0);
	struct rdma_cm_event *request = next_event(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *passive = request->id;
	CHECK(rdma_ack_cm_event(request) == 0);

	/* The id of a request has that address, too, but an id gets no event before rdma_accept succeeded on it, as in Linux. */
	NEED(run("ip link set va address 02:00:00:00:09:03") == 0);
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *own = i == 0 ? listener : active;
		struct rdma_cm_event *changed = next_event(own->channel, RDMA_CM_EVENT_ADDR_CHANGE);

		CHECK(changed->id == own);
		CHECK(rdma_ack_cm_event(changed) == 0);
	}
	CHECK(is_quiet(listener));
	CHECK(rdma_destroy_id(passive) == 0);

	struct rdma_cm_id *all[] = { listener, anywhere, elsewhere, active, synchronous };
	for (int i = 0; i < 5; i++)
		CHECK(rdma_destroy_id(all[i]) == 0);
	return finish();
}
