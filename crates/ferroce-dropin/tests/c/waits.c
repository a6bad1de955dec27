/* Each call that waits, under a signal whose handler has SA_RESTART, and under one whose handler has not. A call stands for a system
 * call of Linux: one that stands for poll, select or epoll_wait returns after either (signal(7)), one that stands for a read goes on after the
 * first. The test sends signals until it has seen the outcome, and measures no time. */
#include "asleep.h"
#include "cm.h"
#include "pair.h"

#include <dlfcn.h>
#include <infiniband/umad.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum kind { POLL, READ };

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener, *silent;
static int empty, full, listening, set, umad_port;
static int (*create_set)(int), (*control_set)(int, int, int, struct epoll_event *), (*wait_set)(int, struct epoll_event *, int, int);
static char octet;
static struct iovec piece = { &octet, 1 };

static int call_rpoll(void)
{
	struct pollfd one = { .fd = empty, .events = POLLIN };

	return rpoll(&one, 1, -1);
}

static int call_rselect(void)
{
	fd_set in;

	FD_ZERO(&in);
	FD_SET(empty, &in);
	return rselect(empty + 1, &in, NULL, NULL, NULL);
}

static int call_repoll_wait(void)
{
	struct epoll_event event;

	return wait_set(set, &event, 1, -1);
}

static int call_umad_poll(void)
{
	int result = umad_poll(umad_port, -1);

	/* As in libibumad: -EIO, and errno tells why. */
	return result == -EIO ? -1 : 0;
}

static int call_umad_recv(void)
{
	static char room[512];
	int length = 256, result = umad_recv(umad_port, room, &length, -1);

	return result == -EIO ? -1 : 0;
}

static int call_rrecv(void) { return rrecv(empty, &octet, 1, 0); }
static int call_rrecvfrom(void) { return rrecvfrom(empty, &octet, 1, 0, NULL, NULL); }
static int call_rread(void) { return rread(empty, &octet, 1); }
static int call_rreadv(void) { return rreadv(empty, &piece, 1); }
static int call_rrecvmsg(void)
{
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };

	return rrecvmsg(empty, &message, 0);
}

/* Until the send buffer is full, and then for ever: acknowledgements may make room. */
#define UNTIL_IT_FAILS(call)                                                                     \
	do {                                                                                     \
		if ((call) < 0)                                                                  \
			return -1;                                                               \
	} while (1)

static int call_rsend(void) { UNTIL_IT_FAILS(rsend(full, &octet, 1, 0)); }
static int call_rsendto(void) { UNTIL_IT_FAILS(rsendto(full, &octet, 1, 0, NULL, 0)); }
static int call_rwrite(void) { UNTIL_IT_FAILS(rwrite(full, &octet, 1)); }
static int call_rwritev(void) { UNTIL_IT_FAILS(rwritev(full, &piece, 1)); }
static int call_rsendmsg(void)
{
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };

	UNTIL_IT_FAILS(rsendmsg(full, &message, 0));
}

static int call_raccept(void) { return raccept(listening, NULL, NULL); }

/* Nobody answers the request. */
static int call_rconnect(void)
{
	struct sockaddr_storage to = address_of("127.0.0.1", 7202);
	int made = rsocket(AF_INET, SOCK_STREAM, 0);

	return rconnect(made, (struct sockaddr *)&to, sizeof(struct sockaddr_in));
}

static int call_get_async_event(void)
{
	struct ibv_async_event event;

	return ibv_get_async_event(context, &event);
}

static struct ibv_comp_channel *completions;

static int call_get_cq_event(void)
{
	struct ibv_cq *cq;
	void *user;

	return ibv_get_cq_event(completions, &cq, &user);
}

static int call_get_cm_event(void)
{
	struct rdma_cm_event *event;

	return rdma_get_cm_event(channel, &event);
}

static int call_get_request(void)
{
	struct rdma_cm_id *request;

	return rdma_get_request(listener, &request);
}

/* `same` names the row whose sleep the call shares, for calls whose wait needs a peer that stops half-way. */
static const struct row {
	const char *name;
	enum kind kind;
	int (*call)(void);
	const char *same;
} rows[] = {
	{ "rpoll", POLL, call_rpoll, NULL },
	{ "rselect", POLL, call_rselect, NULL },
	{ "repoll_wait", POLL, call_repoll_wait, NULL },
	{ "umad_poll", POLL, call_umad_poll, NULL },
	{ "umad_recv", POLL, call_umad_recv, NULL },
	{ "rrecv", READ, call_rrecv, NULL },
	{ "rrecvfrom", READ, call_rrecvfrom, NULL },
	{ "rrecvmsg", READ, call_rrecvmsg, NULL },
	{ "rread", READ, call_rread, NULL },
	{ "rreadv", READ, call_rreadv, NULL },
	{ "rsend", READ, call_rsend, NULL },
	{ "rsendto", READ, call_rsendto, NULL },
	{ "rsendmsg", READ, call_rsendmsg, NULL },
	{ "rwrite", READ, call_rwrite, NULL },
	{ "rwritev", READ, call_rwritev, NULL },
	{ "riowrite", READ, NULL, "rsend" },
	{ "raccept", READ, call_raccept, NULL },
	{ "rconnect", READ, call_rconnect, NULL },
	{ "ibv_get_async_event", READ, call_get_async_event, NULL },
	{ "ibv_get_cq_event", READ, call_get_cq_event, NULL },
	{ "rdma_get_cm_event", READ, call_get_cm_event, NULL },
	{ "rdma_get_request", READ, call_get_request, NULL },
	{ "rdma_connect", READ, NULL, "rdma_get_cm_event" },
	{ "rdma_accept", READ, NULL, "rdma_get_cm_event" },
	{ "rdma_disconnect", READ, NULL, "rdma_get_cm_event" },
};

static volatile int handled;

static void handle(int signal)
{
	(void)signal;
	handled++;
}

static void install(int flags)
{
	struct sigaction action = { .sa_handler = handle, .sa_flags = flags };

	NEED(sigaction(SIGUSR1, &action, NULL) == 0);
}

static volatile pid_t waiter;
static volatile int returned, outcome, why;

static void *wait_in_the_call(void *row)
{
	waiter = syscall(SYS_gettid);
	outcome = ((const struct row *)row)->call();
	why = errno;
	__atomic_store_n(&returned, 1, __ATOMIC_RELEASE);
	return NULL;
}

static int is_back(void)
{
	return __atomic_load_n(&returned, __ATOMIC_ACQUIRE);
}

/* Waits until the thread sleeps in poll, or has returned. */
static void until_asleep(void)
{
	while (!is_back() && !sleeps_in_poll(waiter))
		usleep(1000);
}

static pthread_t begin(const struct row *row)
{
	pthread_t thread;

	returned = waiter = 0;
	NEED(pthread_create(&thread, NULL, wait_in_the_call, (void *)row) == 0);
	until_asleep();
	return thread;
}

/* Signals the sleeping thread, and waits until its handler has run. */
static void interrupt(pthread_t thread)
{
	int before = handled;

	pthread_kill(thread, SIGUSR1);
	while (handled == before && !is_back())
		usleep(1000);
	until_asleep();
}

static void ended(const struct row *row, const char *handler, pthread_t thread)
{
	while (!is_back())
		interrupt(thread);
	pthread_join(thread, NULL);
	if (outcome != -1 || why != EINTR) {
		fprintf(stderr, "%s with %s: %d, errno %d instead of EINTR\n", row->name, handler, outcome, why);
		failures++;
	}
}

static void one(const struct row *row)
{
	install(SA_RESTART);
	pthread_t thread = begin(row);

	for (int i = 0; i < 3 && !is_back(); i++)
		interrupt(thread);
	if (!!is_back() != (row->kind == POLL)) {
		fprintf(stderr, "%s with SA_RESTART %s\n", row->name, is_back() ? "returned" : "went on");
		failures++;
	}
	if (is_back()) {
		ended(row, "SA_RESTART", thread);
		install(0);
		thread = begin(row);
	} else {
		install(0);
	}
	ended(row, "a handler without it", thread);
}

static void pair(int ends[2])
{
	struct sockaddr_storage to = address_of("127.0.0.1", 7200);

	ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	NEED(ends[0] >= 0 && rconnect(ends[0], (struct sockaddr *)&to, sizeof(struct sockaddr_in)) == 0);
	ends[1] = raccept(listening, NULL, NULL);
	NEED(ends[1] >= 0);
}

int main(void)
{
	struct sockaddr_storage at = address_of("127.0.0.1", 7200);
	struct epoll_event event = { .events = EPOLLIN };
	static char block[4096];
	int ends[2], others[2];

	open_pd();
	create_set = (int (*)(int))dlsym(RTLD_DEFAULT, "repoll_create");
	control_set = (int (*)(int, int, int, struct epoll_event *))dlsym(RTLD_DEFAULT, "repoll_ctl");
	wait_set = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_DEFAULT, "repoll_wait");
	NEED(create_set && control_set && wait_set);
	listening = rsocket(AF_INET, SOCK_STREAM, 0);
	NEED(listening >= 0 && rbind(listening, (struct sockaddr *)&at, sizeof(struct sockaddr_in)) == 0);
	NEED(rlisten(listening, 4) == 0);
	pair(ends);
	pair(others);
	empty = ends[0];
	full = others[0];
	while (rsend(full, block, sizeof(block), MSG_DONTWAIT) > 0)
		;
	NEED(errno == EAGAIN);
	set = create_set(0);
	NEED(set >= 0 && control_set(set, EPOLL_CTL_ADD, empty, &event) == 0);
	NEED(completions = ibv_create_comp_channel(context));
	NEED(channel = rdma_create_event_channel());
	at = address_of("127.0.0.1", 7201);
	NEED(rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0 && rdma_listen(listener, 8) == 0);
	at = address_of("127.0.0.1", 7202);
	NEED(rdma_create_id(rdma_create_event_channel(), &silent, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(silent, (struct sockaddr *)&at) == 0 && rdma_listen(silent, 8) == 0);
	NEED(umad_init() == 0);
	umad_port = umad_open_port((char *)ibv_get_device_name(context->device), 1);
	NEED(umad_port >= 0);

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		if (rows[i].call)
			one(&rows[i]);
	return finish();
}
