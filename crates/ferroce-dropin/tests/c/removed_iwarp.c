/* Calls that wait for something of an iWARP device that `ferroce link delete` deletes meanwhile, the connections of the device, and
 * its ports. FERROCE in the environment is the command. */
#include "cm.h"
#include "rows.h"

#include <poll.h>
#include <sys/socket.h>

#define ADDRESS "10.85.0.1"

enum { PORT = 7310, SYNCHRONOUS = 7311, SILENT = 7312, ANY = -2 };

static struct rdma_event_channel *active_channel, *passive_channel, *listen_channel;
static struct rdma_cm_id *listener, *active, *passive, *synchronous, *asking;
static struct ibv_comp_channel *completions;
static int fatal;

static int ferroce(const char *words)
{
	char command[4200];

	snprintf(command, sizeof(command), "env -u FERROCE_BROKER %s %s", getenv("FERROCE"), words);
	return system(command);
}

static int call_get_cq_event(void)
{
	struct ibv_cq *cq;
	void *user;

	return ibv_get_cq_event(completions, &cq, &user);
}

static int call_get_async_event(void)
{
	struct ibv_async_event event;
	int result;

	while ((result = ibv_get_async_event(active->verbs, &event)) == 0) {
		fatal += event.event_type == IBV_EVENT_DEVICE_FATAL;
		ibv_ack_async_event(&event);
	}
	return result;
}

static int poll_the_channel(void)
{
	struct pollfd one = { .fd = completions->fd, .events = POLLIN };

	return poll(&one, 1, -1);
}

/* Events until the device's end. */
static int removal(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	int kind;

	do {
		if (rdma_get_cm_event(channel, &event))
			return -1;
		kind = event->event;
		rdma_ack_cm_event(event);
	} while (kind == RDMA_CM_EVENT_DISCONNECTED);
	return kind;
}
static int call_active(void) { return removal(active_channel); }
static int call_passive(void) { return removal(passive_channel); }
static int call_listener(void) { return removal(listen_channel); }

static int call_get_request(void)
{
	struct rdma_cm_id *id;

	return rdma_get_request(synchronous, &id);
}

/* The peer takes the TCP connection and says nothing. As in rdma-core the call ends with the status of the event, which is 0. */
static int call_connect(void)
{
	struct rdma_conn_param param = {};

	return rdma_connect(asking, &param) ? -1 : (int)asking->event->event;
}

/* The receive is flushed, or the wait fails. */
static int call_get_recv_comp(void)
{
	struct ibv_wc wc;
	int result = rdma_get_recv_comp(passive, &wc);

	return result == 1 && wc.status == IBV_WC_SUCCESS ? 1 : ANY;
}

static struct row rows[] = {
	{ "ibv_get_cq_event", call_get_cq_event, -1, EIO },
	{ "ibv_get_async_event", call_get_async_event, -1, EIO },
	{ "poll of a completion channel", poll_the_channel, 1, 0 },
	{ "rdma_get_cm_event of the active end", call_active, RDMA_CM_EVENT_DEVICE_REMOVAL, 0 },
	{ "rdma_get_cm_event of the passive end", call_passive, RDMA_CM_EVENT_DEVICE_REMOVAL, 0 },
	{ "rdma_get_cm_event of a listener", call_listener, RDMA_CM_EVENT_DEVICE_REMOVAL, 0 },
	{ "rdma_get_request", call_get_request, -1, 0 },
	{ "rdma_connect", call_connect, RDMA_CM_EVENT_DEVICE_REMOVAL, 0 },
	{ "rdma_get_recv_comp", call_get_recv_comp, ANY, 0 },
};

enum { ROWS = sizeof(rows) / sizeof(*rows) };

static struct rdma_cm_id *bound(struct rdma_event_channel *channel, int port)
{
	struct sockaddr_storage at = address_of(ADDRESS, port);
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(id, (void *)&at) == 0 && rdma_listen(id, 8) == 0);
	CHECK(id->verbs && id->verbs->device->transport_type == IBV_TRANSPORT_IWARP);
	return id;
}

static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	NEED(rdma_create_qp(id, NULL, &init) == 0);
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, int port)
{
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0 && resolve_addr(id, ADDRESS, port) == 0);
	if (channel)
		expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	NEED(rdma_resolve_route(id, 2000) == 0);
	if (channel)
		expect_event(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	create_qp(id);
	return id;
}

/* A socket of TCP that is no iWARP device's, connected to the port, or listening there. */
static int plain(int port, int (*call)(int, const struct sockaddr *, socklen_t))
{
	struct sockaddr_storage at = address_of(ADDRESS, port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	NEED(fd >= 0);
	return call(fd, (struct sockaddr *)&at, sizeof(struct sockaddr_in)) ? -1 : fd;
}

static void prepare(void)
{
	struct rdma_conn_param param = {};
	struct rdma_cm_event *event;
	struct ibv_cq *cq;
	static char octet;

	active_channel = rdma_create_event_channel();
	passive_channel = rdma_create_event_channel();
	listen_channel = rdma_create_event_channel();
	NEED(active_channel && passive_channel && listen_channel);
	listener = bound(listen_channel, PORT);
	synchronous = bound(NULL, SYNCHRONOUS);
	active = resolved(active_channel, PORT);
	NEED(rdma_connect(active, &param) == 0);
	event = next_event(listen_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	passive = event->id;
	NEED(rdma_ack_cm_event(event) == 0 && rdma_migrate_id(passive, passive_channel) == 0);
	create_qp(passive);
	NEED(rdma_accept(passive, &param) == 0);
	expect_event(active_channel, active, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect_event(passive_channel, passive, RDMA_CM_EVENT_ESTABLISHED, 0);
	struct ibv_mr *mr = rdma_reg_msgs(passive, &octet, 1);

	NEED(mr && rdma_post_recv(passive, NULL, &octet, 1, mr) == 0);
	NEED(completions = ibv_create_comp_channel(active->verbs));
	NEED((cq = ibv_create_cq(active->verbs, 4, NULL, completions, 0)) && ibv_req_notify_cq(cq, 0) == 0);
	int silent = plain(SILENT, bind);

	NEED(silent >= 0 && listen(silent, 8) == 0);
	asking = resolved(NULL, SILENT);
}

int main(void)
{
	int half_open;
	char octet;

	raise_lo();
	if (system("ip link add d0 type veth peer name d1 && ip addr add " ADDRESS "/24 dev d0 && ip link set d0 up && "
		   "ip link set d1 up")) {
		fprintf(stderr, "no interface can be made here\n");
		return 77;
	}
	/* The broker is this program's. */
	NEED(ibv_get_device_list(NULL));
	NEED(ferroce("link add iw0 type siw netdev d0") == 0);
	prepare();
	for (struct row *row = rows; row < rows + ROWS; row++) {
		NEED(pthread_create(&row->thread, NULL, wait_in_the_call, row) == 0);
		until_asleep(row);
	}
	NEED((half_open = plain(PORT, connect)) >= 0);
	NEED(ferroce("link delete iw0") == 0);
	for (struct row *row = rows; row < rows + ROWS; row++)
		until_back(row);
	CHECK(failures || fatal == 1);
	/* The listener's port and connections are the device's, and end with it. */
	CHECK(recv(half_open, &octet, 1, 0) <= 0);
	CHECK(plain(PORT, connect) < 0 && errno == ECONNREFUSED);
	if (failures)
		return finish();
	rdma_destroy_qp(active);
	rdma_destroy_qp(passive);
	rdma_destroy_qp(asking);
	CHECK(rdma_destroy_id(active) == 0 && rdma_destroy_id(passive) == 0 && rdma_destroy_id(listener) == 0);
	CHECK(rdma_destroy_id(asking) == 0 && rdma_destroy_id(synchronous) == 0);
	return finish();
}
