/* A program with its own epoll on the non-blocking descriptor of a completion channel. After some events packets wake the
 * program directly: the lane's socket is a second member of the epoll set behind the descriptor. */
#include "pair.h"

#include <fcntl.h>
#include <sys/epoll.h>

static struct end a, b;
static int set;

/* Members of the epoll set behind the channel's descriptor. */
static int members(void)
{
	char path[64], line[256];
	int count = 0;

	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", b.channel->fd);
	FILE *file = fopen(path, "r");

	NEED(file);
	while (fgets(line, sizeof line, file))
		count += !strncmp(line, "tfd:", 4);
	fclose(file);
	return count;
}

static int readable(int timeout_ms)
{
	struct epoll_event event;
	int got = epoll_wait(set, &event, 1, timeout_ms);

	NEED(got >= 0);
	return got;
}

static void arm(void)
{
	NEED(ibv_req_notify_cq(b.cq, 0) == 0);
}

/* The program's work when the descriptor is readable. Returns the completions of b; those of a are discarded. If this
 * thread had to wait for its core, the background thread may have received the packet meanwhile, and there may be no event. */
static int turn(void)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *user;
	int taken = 0;

	if (ibv_get_cq_event(b.channel, &cq, &user) == 0) {
		CHECK(cq == b.cq && user == &context);
		ibv_ack_cq_events(cq, 1);
		arm();
	} else {
		CHECK(errno == EAGAIN);
	}
	while (ibv_poll_cq(b.cq, 1, &wc) == 1)
		taken++;
	while (ibv_poll_cq(a.cq, 1, &wc) == 1)
		;
	return taken;
}

static void exchange(int messages)
{
	for (int taken = 0; taken < messages;) {
		post_receive(&b, 1, 0, 64);
		CHECK(post(&a, IBV_WR_SEND, 2, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
		for (int before = taken; taken == before;) {
			NEED(readable(10000) == 1);
			taken += turn();
		}
	}
}

static void until_packets_wake_it(void)
{
	for (int tries = 0; members() == 1 && tries < 100; tries++)
		exchange(100);
	NEED(members() == 2);
}

/* Packets received by any thread do not keep the descriptor readable. */
static void it_is_quiet_afterwards(void)
{
	while (readable(100))
		turn();
	CHECK(readable(0) == 0);
}

/* Packets cause edges, and a program that takes all events each time reaches an empty channel each time. */
static void edges_are_seen(void)
{
	int edges = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	struct ibv_wc wc;

	NEED(edges >= 0 && epoll_ctl(edges, EPOLL_CTL_ADD, b.channel->fd, &event) == 0);
	epoll_wait(edges, &event, 1, 0);
	for (int message = 0; message < 50; message++) {
		struct ibv_cq *cq;
		void *user;

		post_receive(&b, 1, 0, 64);
		CHECK(post(&a, IBV_WR_SEND, 2, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
		for (int taken = 0; !taken;) {
			NEED(epoll_wait(edges, &event, 1, 10000) == 1);
			alarm(20);
			while (ibv_get_cq_event(b.channel, &cq, &user) == 0) {
				ibv_ack_cq_events(cq, 1);
				arm();
			}
			alarm(0);
			CHECK(errno == EAGAIN);
			while (ibv_poll_cq(b.cq, 1, &wc) == 1)
				taken++;
		}
		next_wc(&a);
	}
	close(edges);
}

/* The program polls only its memory: the background thread receives the packets. */
static void packets_of_a_program_that_does_not_look_arrive(void)
{
	volatile char *byte = b.memory + 1000;

	for (char number = 1; number < 20; number++) {
		a.memory[0] = number;
		CHECK(post(&a, IBV_WR_RDMA_WRITE, 3, 0, 1, &b, 1000, IBV_SEND_SIGNALED) == 0);
		alarm(20);
		while (*byte != number)
			;
		alarm(0);
		next_wc(&a);
	}
}

/* A stream of packets without completions at b wakes the program for a while, and then no more. */
static void packets_without_events_stop_waking_the_program(void)
{
	int woken = 0;

	it_is_quiet_afterwards();
	arm();
	for (int write = 0; write < 1000 && members() == 2; write++) {
		CHECK(post(&a, IBV_WR_RDMA_WRITE, 3, 0, 1, &b, 2000, 0) == 0 || errno == ENOMEM);
		while (readable(1)) {
			CHECK(turn() == 0);
			woken++;
		}
	}
	CHECK(members() == 1);
	CHECK(woken > 0 && woken <= 200);
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 3, 0, 1, &b, 2000, IBV_SEND_SIGNALED) == 0);
	next_wc(&a);
	CHECK(readable(100) == 0);
}

/* Without queue pairs only events make the descriptor readable. */
static void the_socket_leaves_with_the_queue_pair(void)
{
	NEED(members() == 2);
	CHECK(ibv_destroy_qp(b.qp) == 0);
	CHECK(members() == 1);
}

int main(void)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT };

	open_pair(&a, &b);
	NEED(fcntl(b.channel->fd, F_SETFL, fcntl(b.channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	set = epoll_create1(EPOLL_CLOEXEC);
	NEED(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, b.channel->fd, &event) == 0);
	arm();
	until_packets_wake_it();
	it_is_quiet_afterwards();
	edges_are_seen();
	packets_of_a_program_that_does_not_look_arrive();
	until_packets_wake_it();
	packets_without_events_stop_waking_the_program();
	until_packets_wake_it();
	the_socket_leaves_with_the_queue_pair();

	CHECK(ibv_destroy_qp(a.qp) == 0);
	CHECK(ibv_dereg_mr(a.mr) == 0 && ibv_dereg_mr(b.mr) == 0);
	CHECK(ibv_destroy_cq(a.cq) == 0 && ibv_destroy_cq(b.cq) == 0);
	CHECK(ibv_destroy_comp_channel(a.channel) == 0 && ibv_destroy_comp_channel(b.channel) == 0);
	return close_pd();
}
