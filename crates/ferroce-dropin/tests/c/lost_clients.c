/* Clients that are killed, that exit, and that destroy their ids, at each step of a connection. An id of a request gets no event before
 * rdma_accept succeeded on it (Linux 6.12, `ucma_event_handler`), and afterwards the server learns of the end: servers rely on both. */
#include "cm.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

enum { PORT = 7196 };

/* How far the client comes, and how it ends there. */
enum step { ASKED, BEFORE_ACCEPT, ACCEPTED, ESTABLISHED, STEPS };
enum end { KILLED, EXITS, DESTROYS, ENDS };

static struct ibv_qp_init_attr init_attr(void)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	return init;
}

static void say(int to)
{
	NEED(write(to, "x", 1) == 1);
}

static void hear(int from)
{
	char octet;

	NEED(read(from, &octet, 1) == 1);
}

/* Connects when told to, and ends when told to; says so each time. */
static int client(int orders, int reports, const char *address, enum step step, enum end end)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct ibv_qp_init_attr init = init_attr();
	struct rdma_cm_id *id = NULL;

	hear(orders);
	NEED(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(resolve_addr(id, address, PORT) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	NEED(rdma_resolve_route(id, 2000) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	NEED(rdma_create_qp(id, NULL, &init) == 0);
	NEED(rdma_connect(id, &param) == 0);
	say(reports);
	hear(orders);
	if (step == ESTABLISHED)
		expect_event(channel, id, RDMA_CM_EVENT_ESTABLISHED, 0);
	if (end == KILLED)
		raise(SIGKILL);
	if (end == DESTROYS) {
		rdma_destroy_qp(id);
		NEED(rdma_destroy_id(id) == 0);
		say(reports);
		hear(orders);
	}
	exit(0);
}

/* The next event of the channel within `ms` milliseconds; NULL if none came. */
static struct rdma_cm_event *event_within(struct rdma_event_channel *channel, int ms)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event = NULL;

	if (poll(&readable, 1, ms) == 1)
		NEED(rdma_get_cm_event(channel, &event) == 0);
	return event;
}

static void no_event(struct rdma_event_channel *channel, int ms, const char *when)
{
	for (struct rdma_cm_event *event; (event = event_within(channel, ms));) {
		fprintf(stderr, "%s: %s, status %d\n", when, rdma_event_str(event->event), event->status);
		failures++;
		NEED(rdma_ack_cm_event(event) == 0);
	}
}

/* The parent's side of a client. */
struct child {
	pid_t pid;
	int orders, reports;
};

/* Clients are forked before their parent, in which the broker is, uses the library. */
static struct child forked(const char *address, enum step step, enum end end)
{
	int orders[2], reports[2];

	NEED(pipe(orders) == 0 && pipe(reports) == 0);
	pid_t pid = fork();

	NEED(pid >= 0);
	if (pid == 0) {
		alarm(55);
		client(orders[0], reports[1], address, step, end);
	}
	close(orders[0]);
	close(reports[1]);
	return (struct child){ pid, orders[1], reports[0] };
}

static void round_of(struct child child, const char *address, enum step step, enum end end)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage at = address_of(address, PORT);
	struct rdma_conn_param param = { .retry_count = 7 };
	struct ibv_qp_init_attr init = init_attr();
	struct rdma_cm_id *listen = NULL, *id = NULL;
	int accepted, status;

	fprintf(stderr, "%s, step %d, end %d\n", address, step, end);
	NEED(channel && rdma_create_id(channel, &listen, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listen, (void *)&at) == 0 && rdma_listen(listen, 4) == 0);
	say(child.orders);
	hear(child.reports);

	struct rdma_cm_event *event = NULL;

	if (step != ASKED) {
		event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		id = event->id;
		CHECK((id->verbs->device->transport_type == IBV_TRANSPORT_IWARP) == !!getenv("IWARP"));
		NEED(rdma_ack_cm_event(event) == 0);
	}
	if (step >= ACCEPTED) {
		NEED(rdma_create_qp(id, NULL, &init) == 0);
		NEED(rdma_accept(id, &param) == 0);
	}
	say(child.orders);
	if (step == ESTABLISHED)
		expect_event(channel, id, RDMA_CM_EVENT_ESTABLISHED, 0);
	if (end == DESTROYS)
		hear(child.reports);
	else
		NEED(waitpid(child.pid, &status, 0) == child.pid);
	if (step == ASKED) {
		/* The request may be told although its client is gone. */
		event = event_within(channel, 300);
		if (!event)
			goto done;
		CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
		id = event->id;
		NEED(rdma_ack_cm_event(event) == 0);
	}
	if (step <= BEFORE_ACCEPT) {
		no_event(channel, 300, "before rdma_accept");
		NEED(rdma_create_qp(id, NULL, &init) == 0);
		accepted = rdma_accept(id, &param);
		if (accepted)
			no_event(channel, 300, "after rdma_accept failed");
	} else {
		accepted = 0;
	}
	/* Once accepted, an id learns that its peer is gone. A killed peer of a stream may have been accepted before the kernel said so. */
	while (!accepted) {
		NEED((event = event_within(channel, 40000)));
		enum rdma_cm_event_type kind = event->event;

		CHECK(event->id == id);
		NEED(rdma_ack_cm_event(event) == 0);
		if (kind == RDMA_CM_EVENT_ESTABLISHED)
			continue;
		if (kind != RDMA_CM_EVENT_DISCONNECTED && kind != RDMA_CM_EVENT_REJECTED &&
		    kind != RDMA_CM_EVENT_UNREACHABLE && kind != RDMA_CM_EVENT_CONNECT_ERROR)
			fprintf(stderr, "%s\n", rdma_event_str(kind));
		CHECK(kind == RDMA_CM_EVENT_DISCONNECTED || kind == RDMA_CM_EVENT_REJECTED ||
		      kind == RDMA_CM_EVENT_UNREACHABLE || kind == RDMA_CM_EVENT_CONNECT_ERROR);
		break;
	}
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
done:
	if (end == DESTROYS) {
		say(child.orders);
		NEED(waitpid(child.pid, &status, 0) == child.pid);
	}
	CHECK(rdma_destroy_id(listen) == 0);
	rdma_destroy_event_channel(channel);
	close(child.orders);
	close(child.reports);
}

int main(void)
{
	struct child children[STEPS][ENDS];

	raise_lo();
	alarm(55);
	for (enum step step = ASKED; step < STEPS; step++)
		for (enum end end = KILLED; end < ENDS; end++)
			children[step][end] = forked("127.0.0.1", step, end);
	for (enum step step = ASKED; step < STEPS; step++)
		for (enum end end = KILLED; end < ENDS; end++)
			round_of(children[step][end], "127.0.0.1", step, end);
	return finish();
}
