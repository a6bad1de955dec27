/* Cancelled threads: a blocking call ends, and loses no event or message for other threads; in any other call a
 * cancellation request has no effect. */
#include "cm.h"
#include "pair.h"

#include <infiniband/umad.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>

static struct end a, b;
static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;
static int umad, agent, listening, silent, streams[2];

/* A thread that makes one call, and its result. */
struct waiter {
	void (*call)(struct waiter *);
	void (*handler)(void);
	pthread_t thread;
	volatile pid_t tid;
	volatile int held, handled, returned;
};

static void handle(void *argument)
{
	struct waiter *waiter = argument;

	if (waiter->handler)
		waiter->handler();
	waiter->handled++;
}

static void *wait_in_thread(void *argument)
{
	struct waiter *waiter = argument;

	pthread_cleanup_push(handle, waiter);
	waiter->tid = syscall(SYS_gettid);
	while (waiter->held)
		sched_yield();
	waiter->call(waiter);
	waiter->returned = 1;
	pthread_cleanup_pop(0);
	return NULL;
}

static char state_of(pid_t tid)
{
	char path[64], line[256] = "";

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)tid);
	FILE *file = fopen(path, "r");

	NEED(file);
	NEED(fgets(line, sizeof(line), file));
	fclose(file);
	char *end = strrchr(line, ')');

	NEED(end && end[1] == ' ');
	return end[2];
}

static void start(struct waiter *waiter)
{
	NEED(pthread_create(&waiter->thread, NULL, wait_in_thread, waiter) == 0);
}

/* Waits until the thread sleeps, and still does a while later. */
static void until_asleep(struct waiter *waiter)
{
	for (int looks = 0; looks < 5;) {
		usleep(2000);
		looks = waiter->tid && state_of(waiter->tid) == 'S' ? looks + 1 : 0;
	}
}

static void cancel(struct waiter *waiter)
{
	void *result = NULL;

	CHECK(pthread_cancel(waiter->thread) == 0);
	NEED(pthread_join(waiter->thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
	CHECK(waiter->handled == 1 && !waiter->returned);
}

static void call_get_cq_event(struct waiter *waiter)
{
	struct ibv_cq *cq;
	void *cq_context;

	(void)waiter;
	ibv_get_cq_event(b.channel, &cq, &cq_context);
}

static void call_get_async_event(struct waiter *waiter)
{
	struct ibv_async_event event;

	(void)waiter;
	ibv_get_async_event(context, &event);
}

static void call_get_cm_event(struct waiter *waiter)
{
	struct rdma_cm_event *event;

	(void)waiter;
	rdma_get_cm_event(channel, &event);
}

static void call_get_request(struct waiter *waiter)
{
	struct rdma_cm_id *id;

	(void)waiter;
	rdma_get_request(listener, &id);
}

static void call_umad_recv(struct waiter *waiter)
{
	char buffer[512];
	int length = 256;

	(void)waiter;
	umad_recv(umad, buffer, &length, -1);
}

static void call_umad_poll(struct waiter *waiter)
{
	(void)waiter;
	umad_poll(umad, 1000000);
}

static void call_raccept(struct waiter *waiter)
{
	(void)waiter;
	raccept(listening, NULL, NULL);
}

static void call_rconnect(struct waiter *waiter)
{
	struct sockaddr_storage to = address_of("127.0.0.1", 7711);

	(void)waiter;
	rconnect(silent, (struct sockaddr *)&to, sizeof(struct sockaddr_in));
}

static void call_rrecv(struct waiter *waiter)
{
	char octets[64];

	(void)waiter;
	rrecv(streams[0], octets, sizeof(octets), MSG_WAITALL);
}

static void call_rpoll(struct waiter *waiter)
{
	struct pollfd fd = { .fd = streams[0], .events = POLLIN };

	(void)waiter;
	rpoll(&fd, 1, -1);
}

static void call_rselect(struct waiter *waiter)
{
	fd_set fds;

	(void)waiter;
	FD_ZERO(&fds);
	FD_SET(streams[0], &fds);
	rselect(streams[0] + 1, &fds, NULL, NULL, NULL);
}

static char mass[8 << 20];

static void call_rsend(struct waiter *waiter)
{
	(void)waiter;
	rsend(streams[1], mass, sizeof(mass), 0);
}

static void while_asleep(void (*call)(struct waiter *), int times)
{
	for (int time = 0; time < times; time++) {
		struct waiter waiter = { .call = call };

		start(&waiter);
		until_asleep(&waiter);
		cancel(&waiter);
	}
}

/* A pending cancellation takes effect before the call takes anything. */
static void before_the_call(void (*call)(struct waiter *))
{
	struct waiter waiter = { .call = call, .held = 1 };

	start(&waiter);
	while (!waiter.tid)
		sched_yield();
	CHECK(pthread_cancel(waiter.thread) == 0);
	waiter.held = 0;
	void *result = NULL;

	NEED(pthread_join(waiter.thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED && waiter.handled == 1 && !waiter.returned);
}

/* Packets are received while no thread is in a call. */
static void written_without_a_call(void)
{
	volatile char *there = b.memory + 512;

	*there = 0;
	a.memory[0] = 7;
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 9, 0, 1, &b, 512, IBV_SEND_SIGNALED) == 0);
	alarm(20);
	while (*there != 7)
		sched_yield();
	alarm(0);
}

static void completion_channels(void)
{
	struct ibv_cq *cq;
	void *cq_context;

	while_asleep(call_get_cq_event, 3);
	written_without_a_call();
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);

	struct waiter waiter = { .call = call_get_cq_event, .handler = written_without_a_call };

	start(&waiter);
	until_asleep(&waiter);
	cancel(&waiter);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);

	/* The channel still works, and an event that preceded the cancellation is not lost. */
	CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
	post_receive(&b, 1, 0, 64);
	CHECK(post(&a, IBV_WR_SEND, 2, 0, 16, &b, 0, IBV_SEND_SIGNALED) == 0);
	struct pollfd fd = { .fd = b.channel->fd, .events = POLLIN };

	NEED(poll(&fd, 1, 20000) == 1);
	before_the_call(call_get_cq_event);
	NEED(ibv_get_cq_event(b.channel, &cq, &cq_context) == 0);
	CHECK(cq == b.cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(next_wc(&b).status == IBV_WC_SUCCESS);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
}

static volatile unsigned received;

/* Receives messages until it is cancelled. */
static void receive_all(struct waiter *waiter)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *cq_context;

	(void)waiter;
	for (;;) {
		NEED(ibv_get_cq_event(b.channel, &cq, &cq_context) == 0);
		ibv_ack_cq_events(cq, 1);
		CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
		while (ibv_poll_cq(b.cq, 1, &wc) > 0) {
			CHECK(wc.status == IBV_WC_SUCCESS);
			post_receive(&b, 1, 0, 64);
			received++;
		}
	}
}

static void tick(int signal)
{
	(void)signal;
}

/* Sends signals to the process all the time. */
static timer_t storm(void)
{
	struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct itimerspec each = { .it_interval.tv_nsec = 300000, .it_value.tv_nsec = 300000 };
	timer_t timer;

	NEED(sigaction(SIGUSR1, &action, NULL) == 0);
	NEED(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
	NEED(timer_settime(timer, 0, &each, NULL) == 0);
	return timer;
}

static void while_packets_flow(void)
{
	unsigned sent = 0;
	timer_t timer = storm();

	received = 0;
	for (int i = 0; i < 8; i++)
		post_receive(&b, 1, 0, 64);
	CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
	for (int round = 0; round < 300; round++) {
		struct waiter waiter = { .call = receive_all };
		unsigned until = sent + 1 + round % 7;

		start(&waiter);
		while (sent < until) {
			CHECK(post(&a, IBV_WR_SEND, 2, 0, 16, &b, 0, IBV_SEND_SIGNALED) == 0);
			CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
			sent++;
		}
		cancel(&waiter);
	}
	struct waiter last = { .call = receive_all };

	start(&last);
	alarm(20);
	while (received < sent)
		sched_yield();
	alarm(0);
	cancel(&last);
	CHECK(received == sent);
	timer_delete(timer);
}

static volatile int done;

/* Calls of every kind, with a cancellation request pending. */
static void many_calls(struct waiter *waiter)
{
	struct ibv_qp_init_attr init = {
		.send_cq = a.cq,
		.recv_cq = a.cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UD,
	};
	struct ibv_port_attr port;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *cq_context;

	(void)waiter;
	for (int round = 0; round < 10000; round++) {
		CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
		CHECK(post(&a, IBV_WR_SEND, 2, 0, 16, &b, 0, IBV_SEND_SIGNALED) == 0);
		CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
		while (ibv_poll_cq(b.cq, 1, &wc) == 0)
			;
		post_receive(&b, 1, 0, 64);
		if (round % 100)
			continue;
		struct ibv_mr *mr = ibv_reg_mr(pd, a.memory, 4096, 0);
		struct ibv_qp *qp = ibv_create_qp(pd, &init);
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

		NEED(mr && qp);
		CHECK(ibv_modify_qp(qp, &attr,
				    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
		CHECK(ibv_query_port(context, 1, &port) == 0);
		CHECK(ibv_destroy_qp(qp) == 0);
		CHECK(ibv_dereg_mr(mr) == 0);
		struct rdma_cm_id *id;

		NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
		CHECK(resolve_addr(id, "127.0.0.1", 7000) == 0);
		CHECK(rdma_destroy_id(id) == 0);
	}
	done = 1;
	/* Events that arrived meanwhile are in the channel: a blocking call acts on the cancellation first. */
	ibv_get_cq_event(b.channel, &cq, &cq_context);
}

static void while_it_does_not_wait(void)
{
	before_the_call(many_calls);
	CHECK(done);

	struct ibv_cq *cq;
	void *cq_context;

	NEED(ibv_get_cq_event(b.channel, &cq, &cq_context) == 0);
	CHECK(cq == b.cq);
	ibv_ack_cq_events(cq, 1);
}

static void connection_management(void)
{
	struct rdma_cm_id *id;
	struct sockaddr_storage at = address_of("127.0.0.1", 7711);

	while_asleep(call_get_cm_event, 3);
	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(resolve_addr(id, "127.0.0.1", 7712) == 0);
	before_the_call(call_get_cm_event);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(rdma_destroy_id(id) == 0);

	NEED(rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0);
	NEED(rdma_listen(listener, 4) == 0);
	while_asleep(call_get_request, 3);
}

static volatile int interrupted;

static void count_interruption(int signal)
{
	(void)signal;
	interrupted++;
}

/* A channel is destroyed under a thread that sleeps for its events. As in rdma-core the thread sleeps on: programs such as
 * rping end meanwhile, and a return would be an error to them. */
static void channel_of_a_sleeper(void)
{
	struct waiter waiter = { .call = call_get_cm_event };
	struct sigaction action = { .sa_handler = count_interruption, .sa_flags = SA_RESTART };
	struct rdma_event_channel *other = channel;

	NEED(sigaction(SIGUSR1, &action, NULL) == 0);
	channel = rdma_create_event_channel();
	NEED(channel);
	start(&waiter);
	until_asleep(&waiter);
	rdma_destroy_event_channel(channel);
	/* The thread looks again. */
	NEED(pthread_kill(waiter.thread, SIGUSR1) == 0);
	while (!interrupted)
		sched_yield();
	until_asleep(&waiter);
	cancel(&waiter);
	channel = other;
}

static void management(void)
{
	NEED(umad_init() == 0);
	umad = umad_open_port(NULL, 0);
	NEED(umad >= 0);
	agent = umad_register(umad, 4, 1, 0, NULL);
	NEED(agent >= 0);
	while_asleep(call_umad_recv, 2);
	while_asleep(call_umad_poll, 2);
	CHECK(umad_poll(umad, 10) == -ETIMEDOUT);
	CHECK(umad_unregister(umad, agent) == 0);
	CHECK(umad_close_port(umad) == 0);
}

static void *connect_a_stream(void *argument)
{
	struct sockaddr_storage to = address_of("127.0.0.1", 7713);

	(void)argument;
	NEED(rconnect(streams[1], (struct sockaddr *)&to, sizeof(struct sockaddr_in)) == 0);
	return NULL;
}

static void rsockets(void)
{
	struct sockaddr_storage at = address_of("127.0.0.1", 7713);
	pthread_t thread;
	char octets[64];

	listening = rsocket(AF_INET, SOCK_STREAM, 0);
	streams[1] = rsocket(AF_INET, SOCK_STREAM, 0);
	silent = rsocket(AF_INET, SOCK_STREAM, 0);
	NEED(listening >= 0 && streams[1] >= 0 && silent >= 0);
	NEED(rbind(listening, (struct sockaddr *)&at, sizeof(struct sockaddr_in)) == 0);
	NEED(rlisten(listening, 4) == 0);
	while_asleep(call_raccept, 2);
	/* A program listens at this port and does not answer. */
	while_asleep(call_rconnect, 1);

	NEED(pthread_create(&thread, NULL, connect_a_stream, NULL) == 0);
	streams[0] = raccept(listening, NULL, NULL);
	NEED(streams[0] >= 0);
	pthread_join(thread, NULL);
	while_asleep(call_rrecv, 2);
	while_asleep(call_rpoll, 2);
	while_asleep(call_rselect, 2);
	CHECK(rsend(streams[1], "so it goes", 10, 0) == 10);
	CHECK(rrecv(streams[0], octets, 10, MSG_WAITALL) == 10 && memcmp(octets, "so it goes", 10) == 0);
	/* Two threads wait: one receives packets; when it ends, the other is woken. */
	struct waiter first = { .call = call_rrecv }, second = { .call = call_rrecv };

	start(&first);
	until_asleep(&first);
	start(&second);
	until_asleep(&second);
	cancel(&first);
	until_asleep(&second);
	CHECK(rsend(streams[1], mass, 64, 0) == 64);
	NEED(pthread_join(second.thread, NULL) == 0);
	CHECK(second.returned && !second.handled);
	/* The peer has no more space: octets sent before stay sent. */
	while_asleep(call_rsend, 1);
	CHECK(rrecv(streams[0], octets, sizeof(octets), MSG_WAITALL) == sizeof(octets));
	CHECK(rclose(silent) == 0);
	CHECK(rclose(listening) == 0);
}

int main(void)
{
	alarm(0);
	context = open_device();
	pd = ibv_alloc_pd(context);
	channel = rdma_create_event_channel();
	NEED(pd && channel);
	make_pair(&a, &b);

	while_asleep(call_get_async_event, 3);
	completion_channels();
	while_packets_flow();
	while_it_does_not_wait();
	management();
	connection_management();
	channel_of_a_sleeper();
	rsockets();
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
	return close_pair(&a, &b);
}
