/* Descriptors of completion channels, asynchronous events, event channels and umad ports in poll and epoll. */
#include "pair.h"

#include <fcntl.h>
#include <infiniband/umad.h>
#include <rdma/rdma_cma.h>
#include <sys/epoll.h>

enum { MESSAGES = 200, EVERYTHING = POLLIN | POLLOUT | POLLPRI };

static struct end a, b;

static int state_of(int fd)
{
	struct pollfd one = { .fd = fd, .events = EVERYTHING };

	NEED(poll(&one, 1, 0) >= 0);
	return one.revents;
}

static void set_nonblocking(int fd)
{
	NEED(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

/* Completes a request at b; the event follows only if it was requested. */
static void send_one(void)
{
	post_receive(&b, 1, 0, 64);
	CHECK(post(&a, IBV_WR_SEND, 2, 0, 8, &b, 0, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED) == 0);
}

static void wait_readable(int fd)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };

	NEED(poll(&one, 1, 10000) == 1);
}

static void take_event(void)
{
	struct ibv_cq *cq;
	void *user;

	NEED(ibv_get_cq_event(b.channel, &cq, &user) == 0);
	CHECK(cq == b.cq);
	ibv_ack_cq_events(cq, 1);
}

/* As in Linux, these descriptors are readable while events are queued, and never writable; a umad port takes datagrams at
 * any time. */
static void only_umad_is_writable(void)
{
	struct rdma_event_channel *events = rdma_create_event_channel();
	int port = umad_open_port(NULL, 0);

	NEED(events && port >= 0);
	CHECK(state_of(b.channel->fd) == 0);
	CHECK(state_of(context->async_fd) == 0);
	CHECK(state_of(events->fd) == 0);
	CHECK(state_of(umad_get_fd(port)) == POLLOUT);

	NEED(ibv_req_notify_cq(b.cq, 0) == 0);
	send_one();
	wait_readable(b.channel->fd);
	CHECK(state_of(b.channel->fd) == POLLIN);
	take_event();
	CHECK(state_of(b.channel->fd) == 0);
	next_wc(&b);
	next_wc(&a);

	struct rdma_cm_id *id;
	struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = 1 };
	struct rdma_cm_event *event;

	NEED(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&loopback, 1000) == 0);
	wait_readable(events->fd);
	CHECK(state_of(events->fd) == POLLIN);
	NEED(rdma_get_cm_event(events, &event) == 0);
	CHECK(state_of(events->fd) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(events);
	CHECK(umad_close_port(port) == 0);
}

/* A program that polls for both directions, as event loops do, wakes only for events. */
static void waiting_for_both_directions_does_not_spin(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC), in_vain = 0, sent = 0, completed = 0;
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT };
	struct ibv_wc wc;

	NEED(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, b.channel->fd, &event) == 0);
	NEED(ibv_req_notify_cq(b.cq, 0) == 0);
	for (int taken = 0; taken < MESSAGES;) {
		struct ibv_cq *cq;
		void *user;

		if (taken == sent) {
			send_one();
			sent++;
		}
		NEED(epoll_wait(set, &event, 1, 10000) == 1);
		CHECK(event.events == EPOLLIN);
		if (ibv_get_cq_event(b.channel, &cq, &user)) {
			in_vain++;
			continue;
		}
		ibv_ack_cq_events(cq, 1);
		NEED(ibv_req_notify_cq(b.cq, 0) == 0);
		while (ibv_poll_cq(b.cq, 1, &wc) == 1)
			taken++;
		while (ibv_poll_cq(a.cq, 1, &wc) == 1)
			completed++;
	}
	CHECK(in_vain == 0);
	for (; completed < sent; completed++)
		next_wc(&a);
	close(set);
}

/* Each event is an edge, also when others are queued already. */
static void each_event_is_an_edge(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };

	NEED(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, b.channel->fd, &event) == 0);
	for (int round = 0; round < 3; round++) {
		NEED(ibv_req_notify_cq(b.cq, 0) == 0);
		send_one();
		CHECK(epoll_wait(set, &event, 1, 10000) == 1);
		CHECK(epoll_wait(set, &event, 1, 0) == 0);
		NEED(ibv_req_notify_cq(b.cq, 0) == 0);
		send_one();
		CHECK(epoll_wait(set, &event, 1, 10000) == 1);
		CHECK(epoll_wait(set, &event, 1, 0) == 0);
		take_event();
		take_event();
		for (int i = 0; i < 2; i++) {
			next_wc(&b);
			next_wc(&a);
		}
	}
	close(set);
}

/* A thread that reads from the descriptor takes no event, and delays no other thread. */
static void reading_from_it_takes_nothing(void)
{
	uint64_t octets;

	NEED(ibv_req_notify_cq(b.cq, 0) == 0);
	send_one();
	wait_readable(b.channel->fd);
	CHECK(read(b.channel->fd, &octets, sizeof octets) < 0);
	CHECK(state_of(b.channel->fd) == POLLIN);
	NEED(fcntl(b.channel->fd, F_SETFL, fcntl(b.channel->fd, F_GETFL) & ~O_NONBLOCK) == 0);
	alarm(20);
	take_event();
	alarm(0);
	CHECK(state_of(b.channel->fd) == 0);
	next_wc(&b);
	next_wc(&a);
}

int main(void)
{
	open_pair(&a, &b);
	only_umad_is_writable();
	set_nonblocking(b.channel->fd);
	each_event_is_an_edge();
	waiting_for_both_directions_does_not_spin();
	reading_from_it_takes_nothing();
	return close_pair(&a, &b);
}
