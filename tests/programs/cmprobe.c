/*
 * cmprobe: one connection by librdmacm's public calls, and how it ends. It runs on any librdmacm: ferroce's, or the
 * kernel's.
 *
 *   cmprobe server ADDRESS PORT HOW    one request, and then
 *       accept     accepts, echoes one message, waits until the client disconnects (or is gone)
 *       part       accepts, echoes one message, disconnects
 *       reject     rejects
 *       ignore     says nothing at all, for 200 s
 *   cmprobe client ADDRESS PORT HOW    connects, and
 *       part       sends one message, checks the echo, disconnects
 *       wait       sends one message, checks the echo, waits until the server disconnects (or is gone)
 *       rejected   expects the rejection by a server
 *       refused    expects that nobody listens, and to hear of it within a second
 *       unreachable, unresolved   expects UNREACHABLE or ADDR_ERROR
 *
 * REQ, REP and REJ carry as much private data as there is room for, which the other end checks. Each event is a line:
 * its name, its status, and the milliseconds since the connection was asked for.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { REQ_DATA = 56, REP_DATA = 196, REJ_DATA = 148, MESSAGE = 5000, PATIENCE = 200 };

static struct rdma_event_channel *channel;
static struct ibv_mr *mr;
static uint8_t *out, *in;
static struct timespec started;

static void die(const char *what)
{
	fprintf(stderr, "cmprobe: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void wrong(const char *what)
{
	fprintf(stderr, "cmprobe: %s\n", what);
	exit(1);
}

static long elapsed(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - started.tv_sec) * 1000 + (now.tv_nsec - started.tv_nsec) / 1000000;
}

static void pattern(uint8_t *to, int length, int seed)
{
	for (int i = 0; i < length; i++) to[i] = (uint8_t)(i * 7 + seed);
}

static struct sockaddr_storage address_of(const char *text, const char *port)
{
	struct sockaddr_storage storage = { 0 };
	struct sockaddr_in *v4 = (void *)&storage;
	struct sockaddr_in6 *v6 = (void *)&storage;

	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(atoi(port));
	} else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(atoi(port));
	} else {
		wrong("ADDRESS is neither IPv4 nor IPv6");
	}
	return storage;
}

/* The next event, whose private data (if asked for) is `length` octets of the pattern of `seed`. */
static struct rdma_cm_event *next(enum rdma_cm_event_type kind, int length, int seed)
{
	static uint8_t want[256];
	struct rdma_cm_event *event;

	do {
		if (rdma_get_cm_event(channel, &event)) die("rdma_get_cm_event");
		printf("%s %d %ld\n", rdma_event_str(event->event), event->status, elapsed());
		/* a side effect of the one before it, which may come late */
	} while (event->event != kind && event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT && !rdma_ack_cm_event(event));
	if (event->event != kind) wrong("another event was due");
	pattern(want, length, seed);
	if (length && (event->param.conn.private_data_len < length || memcmp(event->param.conn.private_data, want, length)))
		wrong("the private data is not what was sent");
	return event;
}

static void expect(enum rdma_cm_event_type kind, int status)
{
	struct rdma_cm_event *event = next(kind, 0, 0);
	if (event->status != status) wrong("another status was due");
	rdma_ack_cm_event(event);
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	if (rdma_create_qp(id, NULL, &attr)) die("rdma_create_qp");
	out = malloc(2 * MESSAGE);
	in = out + MESSAGE;
	mr = rdma_reg_msgs(id, out, 2 * MESSAGE);
	if (!mr) die("rdma_reg_msgs");
	if (rdma_post_recv(id, NULL, in, MESSAGE, mr)) die("rdma_post_recv");
}

static void completion(struct rdma_cm_id *id, int of_send)
{
	struct ibv_wc wc;
	if ((of_send ? rdma_get_send_comp(id, &wc) : rdma_get_recv_comp(id, &wc)) != 1) die("no completion");
	if (wc.status) wrong(ibv_wc_status_str(wc.status));
	if (!of_send && wc.byte_len != MESSAGE) wrong("the message has another length");
}

static void say(struct rdma_cm_id *id)
{
	pattern(out, MESSAGE, 3);
	if (rdma_post_send(id, NULL, out, MESSAGE, mr, 0)) die("rdma_post_send");
	completion(id, 1);
}

static void hear(struct rdma_cm_id *id)
{
	completion(id, 0);
	pattern(out, MESSAGE, 3);
	if (memcmp(in, out, MESSAGE)) wrong("the message is not what was sent");
}

static void disconnect(struct rdma_cm_id *id)
{
	if (rdma_disconnect(id)) die("rdma_disconnect");
	expect(RDMA_CM_EVENT_DISCONNECTED, 0);
}

static void gone(struct rdma_cm_id *id)
{
	printf("connected\n");
	expect(RDMA_CM_EVENT_DISCONNECTED, 0);
	if (rdma_disconnect(id)) die("rdma_disconnect");
}

static void server(struct rdma_cm_id *id, struct sockaddr *address, const char *how)
{
	uint8_t data[REP_DATA];
	struct rdma_conn_param param = { .private_data = data, .responder_resources = 1, .initiator_depth = 1,
					 .rnr_retry_count = 7 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *peer;

	if (rdma_bind_addr(id, address)) die("rdma_bind_addr");
	if (rdma_listen(id, 8)) die("rdma_listen");
	event = next(RDMA_CM_EVENT_CONNECT_REQUEST, REQ_DATA, 1);
	peer = event->id;
	if (event->listen_id != id) wrong("the request came to another listener");
	if (!strcmp(how, "ignore")) {
		sleep(PATIENCE);
		return;
	}
	if (!strcmp(how, "reject")) {
		pattern(data, REJ_DATA, 9);
		if (rdma_reject(peer, data, REJ_DATA)) die("rdma_reject");
		rdma_ack_cm_event(event);
		if (rdma_destroy_id(peer)) die("rdma_destroy_id");
		return;
	}
	rdma_ack_cm_event(event);
	make_qp(peer);
	pattern(data, REP_DATA, 5);
	param.private_data_len = REP_DATA;
	if (rdma_accept(peer, &param)) die("rdma_accept");
	expect(RDMA_CM_EVENT_ESTABLISHED, 0);
	hear(peer);
	say(peer);
	if (!strcmp(how, "part"))
		disconnect(peer);
	else
		gone(peer);
	rdma_destroy_qp(peer);
	rdma_dereg_mr(mr);
	if (rdma_destroy_id(peer)) die("rdma_destroy_id");
}

static void client(struct rdma_cm_id *id, struct sockaddr *address, const char *how)
{
	uint8_t data[REQ_DATA];
	struct rdma_conn_param param = { .private_data = data, .private_data_len = REQ_DATA, .responder_resources = 1,
					 .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;

	if (rdma_resolve_addr(id, NULL, address, 2000)) die("rdma_resolve_addr");
	if (!strcmp(how, "unresolved")) {
		event = next(RDMA_CM_EVENT_ADDR_ERROR, 0, 0);
		if (event->status >= 0) wrong("a negative errno was due");
		rdma_ack_cm_event(event);
		return;
	}
	expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	if (rdma_resolve_route(id, 2000)) die("rdma_resolve_route");
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	make_qp(id);
	pattern(data, REQ_DATA, 1);
	clock_gettime(CLOCK_MONOTONIC, &started);
	if (rdma_connect(id, &param)) die("rdma_connect");
	if (!strcmp(how, "rejected")) {
		event = next(RDMA_CM_EVENT_REJECTED, REJ_DATA, 9);
		if (event->status != 28) wrong("a rejection by the consumer is reason 28");
		rdma_ack_cm_event(event);
	} else if (!strcmp(how, "refused")) {
		expect(RDMA_CM_EVENT_REJECTED, 8);
		if (elapsed() > 1000) wrong("that took more than a second");
	} else if (!strcmp(how, "unreachable")) {
		expect(RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
	} else {
		rdma_ack_cm_event(next(RDMA_CM_EVENT_ESTABLISHED, REP_DATA, 5));
		say(id);
		hear(id);
		if (!strcmp(how, "part"))
			disconnect(id);
		else
			gone(id);
	}
	rdma_destroy_qp(id);
	rdma_dereg_mr(mr);
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *id;
	struct sockaddr_storage address;

	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(PATIENCE);
	channel = rdma_create_event_channel();
	if (!channel) die("rdma_create_event_channel");
	clock_gettime(CLOCK_MONOTONIC, &started);
	if (argc != 5) wrong("see the head of cmprobe.c");
	address = address_of(argv[2], argv[3]);
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)) die("rdma_create_id");
	(strcmp(argv[1], "server") ? client : server)(id, (struct sockaddr *)&address, argv[4]);
	if (rdma_destroy_id(id)) die("rdma_destroy_id");
	rdma_destroy_event_channel(channel);
	return 0;
}
