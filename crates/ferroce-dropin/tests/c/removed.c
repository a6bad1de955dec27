/* Each call that waits for something of a device whose interface is deleted meanwhile. As in Linux, the end of the device wakes the
 * thread, and the call says that nothing will come any more. */
#include "cm.h"
#include "pair.h"
#include "rows.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/umad.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/select.h>

#define ADDRESS "10.84.0.1"

static struct ibv_comp_channel *channel;
/* Of each pair one end waits, and the other one is idle. */
static int reading[2], polled[2], selected[2], member[2], full[2], idle[2], shared[2];
static int listening, datagrams, set, umad_port, waiting_umad_port;
static int (*create_set)(int), (*control_set)(int, int, int, struct epoll_event *), (*wait_set)(int, struct epoll_event *, int, int);
static int fatal;

static int call_get_cq_event(void)
{
	struct ibv_cq *cq;
	void *user;

	return ibv_get_cq_event(channel, &cq, &user);
}

static int call_get_async_event(void)
{
	struct ibv_async_event event;
	int result;

	while ((result = ibv_get_async_event(context, &event)) == 0) {
		fatal += event.event_type == IBV_EVENT_DEVICE_FATAL;
		ibv_ack_async_event(&event);
	}
	return result;
}

static int call_rrecv(void) { char octet; return rrecv(reading[0], &octet, 1, 0); }
/* One of the two threads sleeps on the completion channel, and the other one is woken by it. */
static int call_rrecv_of_two(void) { char octet; return rrecv(shared[0], &octet, 1, 0) > 0; }
static int call_rrecvfrom(void) { char octet; return rrecvfrom(datagrams, &octet, 1, 0, NULL, NULL); }

static int call_rpoll(void)
{
	struct pollfd one = { .fd = polled[0], .events = POLLIN };

	return rpoll(&one, 1, -1) == 1 ? one.revents : -1;
}

static int call_rselect(void)
{
	fd_set in;

	FD_ZERO(&in);
	FD_SET(selected[0], &in);
	return rselect(selected[0] + 1, &in, NULL, NULL, NULL);
}

static int call_repoll_wait(void)
{
	struct epoll_event event;

	return wait_set(set, &event, 1, -1) == 1 ? (int)event.events : -1;
}

static int call_rsend(void)
{
	char octet = 0;

	/* Acknowledgements may make room. */
	while (rsend(full[0], &octet, 1, 0) > 0)
		;
	return -1;
}

/* Nobody answers the request. */
static int call_rconnect(void)
{
	struct sockaddr_storage to = address_of(ADDRESS, 7302);

	return rconnect(rsocket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&to, sizeof(struct sockaddr_in));
}

static int call_umad_poll(void) { return umad_poll(waiting_umad_port, -1); }

static int call_umad_recv(void)
{
	static char room[512];
	int length = 256;

	return umad_recv(umad_port, room, &length, -1);
}

static int readable(int fd, int timeout)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };

	return poll(&one, 1, timeout) == 1 && one.revents != 0;
}

static int poll_the_channel(void) { return readable(channel->fd, -1); }
static int poll_the_port(void) { return readable(umad_get_fd(umad_port), -1); }

/* `why` is the errno, 0 for any. */
static struct row rows[] = {
	{ "ibv_get_cq_event", call_get_cq_event, -1, EIO },
	{ "ibv_get_async_event", call_get_async_event, -1, EIO },
	{ "poll of a completion channel", poll_the_channel, 1, 0 },
	{ "poll of a umad port", poll_the_port, 1, 0 },
	{ "rrecv", call_rrecv, -1, EIO },
	{ "rrecv of two", call_rrecv_of_two, 0, 0 },
	{ "rrecv of the other one", call_rrecv_of_two, 0, 0 },
	{ "rrecvfrom", call_rrecvfrom, -1, EIO },
	{ "rpoll", call_rpoll, POLLIN | POLLERR, 0 },
	{ "rselect", call_rselect, 1, 0 },
	{ "repoll_wait", call_repoll_wait, EPOLLIN | EPOLLERR, 0 },
	{ "rsend", call_rsend, -1, ECONNRESET },
	{ "rconnect", call_rconnect, -1, 0 },
	{ "umad_poll", call_umad_poll, -EIO, 0 },
	{ "umad_recv", call_umad_recv, -EIO, 0 },
};

enum { ROWS = sizeof(rows) / sizeof(*rows) };

static void pair(int ends[2])
{
	struct sockaddr_storage to = address_of(ADDRESS, 7300);

	ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	NEED(ends[0] >= 0 && rconnect(ends[0], (struct sockaddr *)&to, sizeof(struct sockaddr_in)) == 0);
	ends[1] = raccept(listening, NULL, NULL);
	NEED(ends[1] >= 0);
}

static void fill(int fd)
{
	static char block[4096];

	while (rsend(fd, block, sizeof(block), MSG_DONTWAIT) > 0)
		;
	NEED(errno == EAGAIN);
}

/* A datagram socket that has received something, by which it has a queue pair. */
static void open_datagrams(void)
{
	struct sockaddr_storage at = address_of(ADDRESS, 0);
	socklen_t length = sizeof(at);
	int other = rsocket(AF_INET, SOCK_DGRAM, 0);
	char octet = 0;

	datagrams = rsocket(AF_INET, SOCK_DGRAM, 0);
	NEED(other >= 0 && datagrams >= 0);
	NEED(rbind(datagrams, (struct sockaddr *)&at, sizeof(struct sockaddr_in)) == 0);
	NEED(rgetsockname(datagrams, (struct sockaddr *)&at, &length) == 0);
	NEED(rsendto(other, &octet, 1, 0, (struct sockaddr *)&at, length) == 1);
	NEED(rrecvfrom(datagrams, &octet, 1, 0, NULL, NULL) == 1);
}

static void prepare(void)
{
	struct sockaddr_storage at = address_of(ADDRESS, 7300), nobody = address_of(ADDRESS, 7302);
	struct epoll_event event = { .events = EPOLLIN };
	struct rdma_cm_id *silent;
	struct ibv_cq *cq;

	open_pd();
	create_set = (int (*)(int))dlsym(RTLD_DEFAULT, "repoll_create");
	control_set = (int (*)(int, int, int, struct epoll_event *))dlsym(RTLD_DEFAULT, "repoll_ctl");
	wait_set = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_DEFAULT, "repoll_wait");
	NEED(create_set && control_set && wait_set);
	NEED(channel = ibv_create_comp_channel(context));
	NEED(cq = ibv_create_cq(context, 4, NULL, channel, 0));
	NEED(ibv_req_notify_cq(cq, 0) == 0);
	listening = rsocket(AF_INET, SOCK_STREAM, 0);
	NEED(listening >= 0 && rbind(listening, (struct sockaddr *)&at, sizeof(struct sockaddr_in)) == 0);
	NEED(rlisten(listening, 8) == 0);
	pair(reading);
	pair(polled);
	pair(selected);
	pair(member);
	pair(full);
	pair(idle);
	pair(shared);
	fill(full[0]);
	open_datagrams();
	set = create_set(0);
	NEED(set >= 0 && control_set(set, EPOLL_CTL_ADD, member[0], &event) == 0);
	NEED(rdma_create_id(rdma_create_event_channel(), &silent, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(silent, (struct sockaddr *)&nobody) == 0 && rdma_listen(silent, 8) == 0);
	NEED(umad_init() == 0);
	umad_port = umad_open_port((char *)ibv_get_device_name(context->device), 1);
	waiting_umad_port = umad_open_port((char *)ibv_get_device_name(context->device), 1);
	NEED(umad_port >= 0 && waiting_umad_port >= 0);
}

/* Calls on a device that ended before. */
static void afterwards(void)
{
	static _Alignas(8) char room[512];
	struct ibv_async_event event;
	char octet = 0;
	int length = 256;

	CHECK(fatal == 1);
	CHECK(readable(channel->fd, 0) && readable(context->async_fd, 0) && readable(umad_get_fd(umad_port), 0));
	CHECK_MINUS(ibv_get_async_event(context, &event), EIO);
	/* A loop that takes events until there are none would otherwise never end, since the descriptor stays readable. */
	NEED(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK_MINUS(ibv_get_async_event(context, &event), EIO);
	/* Nobody has looked at this socket yet. */
	CHECK_MINUS(rsend(idle[0], &octet, 1, MSG_DONTWAIT), ECONNRESET);
	CHECK_MINUS(rrecv(idle[0], &octet, 1, MSG_DONTWAIT), EIO);
	CHECK_MINUS(rrecv(idle[1], &octet, 1, 0), EIO);
	CHECK(umad_recv(umad_port, room, &length, -1) == -EIO && umad_poll(umad_port, 0) == -EIO);
	CHECK(umad_send(umad_port, 0, room, 256, 0, 0) < 0);
	CHECK(umad_close_port(umad_port) == 0 && umad_close_port(waiting_umad_port) == 0);
	CHECK(rclose(idle[0]) == 0 && rclose(idle[1]) == 0 && rclose(full[0]) == 0 && rclose(datagrams) == 0);
	CHECK(rclose(set) == 0 && rclose(listening) == 0);
}

int main(void)
{
	if (system("ip link add d0 type veth peer name d1 && ip addr add " ADDRESS "/24 dev d0 && ip link set d0 up && "
		   "ip link set d1 up")) {
		fprintf(stderr, "no interface can be made here\n");
		return 77;
	}
	setenv("FERROCE_NETDEV", "d0", 1);
	prepare();
	for (struct row *row = rows; row < rows + ROWS; row++) {
		NEED(pthread_create(&row->thread, NULL, wait_in_the_call, row) == 0);
		until_asleep(row);
	}
	NEED(system("ip link del d0") == 0);
	for (struct row *row = rows; row < rows + ROWS; row++)
		until_back(row);
	if (!failures)
		afterwards();
	if (!failures)
		CHECK(ibv_close_device(context) == 0);
	return finish();
}
