/* A child without exec: it cannot use its parent's objects, and can open the device again, whatever other threads of the
 * parent were doing; the parent continues. */
#include "pair.h"

#include <arpa/inet.h>
#include <link.h>
#include <pthread.h>
#include <sys/wait.h>

static struct end a, b;

static void exchange(void)
{
	post_receive(&b, 1, 0, 64);
	CHECK(post(&a, IBV_WR_SEND, 2, 0, 16, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(next_wc(&b).status == IBV_WC_SUCCESS);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
}

static void connect_two(void)
{
	pd = ibv_alloc_pd(context);
	NEED(pd);
	make_pair(&a, &b);
}

enum { FILES = 24 };

/* Opens TCP connections of the child's own, which get the numbers of its parent's descriptors. */
static void make_files(int ours[FILES], int theirs[FILES])
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	NEED(listener >= 0);
	NEED(bind(listener, (struct sockaddr *)&at, sizeof(at)) == 0);
	NEED(listen(listener, FILES) == 0);
	NEED(getsockname(listener, (struct sockaddr *)&at, &length) == 0);
	for (int i = 0; i < FILES; i++) {
		ours[i] = socket(AF_INET, SOCK_STREAM, 0);
		NEED(ours[i] >= 0);
		NEED(connect(ours[i], (struct sockaddr *)&at, length) == 0);
		theirs[i] = accept(listener, NULL, NULL);
		NEED(theirs[i] >= 0);
	}
}

/* Calls on the parent's objects fail, or do nothing, and write to no descriptor of the child. */
static int child(void)
{
	struct ibv_wc wc;
	struct ibv_port_attr port;
	struct ibv_async_event event;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_sge sge = { .addr = (uintptr_t)b.memory, .length = 64, .lkey = b.mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_cq *cq;
	void *cq_context;
	int ours[FILES], theirs[FILES];
	char octets[256];

	alarm(20);
	failures = 0;
	make_files(ours, theirs);
	CHECK(post(&a, IBV_WR_SEND, 3, 0, 16, &b, 0, IBV_SEND_SIGNALED) == EIO);
	CHECK(ibv_post_recv(b.qp, &receive, &bad) == EIO);
	ibv_wr_start(a.qpx);
	ibv_wr_send(a.qpx);
	CHECK(ibv_wr_complete(a.qpx) == EIO);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == -EIO);
	CHECK(ibv_req_notify_cq(a.cq, 0) == EIO);
	CHECK(ibv_query_port(context, 1, &port) == EIO);
	CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == EIO);
	CHECK_MINUS(ibv_get_cq_event(a.channel, &cq, &cq_context), EIO);
	CHECK_MINUS(ibv_get_async_event(context, &event), EIO);
	CHECK(ibv_destroy_qp(a.qp) == 0);
	CHECK(ibv_destroy_qp(b.qp) == 0);
	CHECK(ibv_dereg_mr(a.mr) == 0);
	CHECK(ibv_destroy_cq(a.cq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	for (int i = 0; i < FILES; i++) {
		CHECK(recv(theirs[i], octets, sizeof(octets), MSG_DONTWAIT) == -1 && errno == EAGAIN);
		CHECK(recv(ours[i], octets, sizeof(octets), MSG_DONTWAIT) == -1 && errno == EAGAIN);
	}
	return finish();
}

static volatile int stop;

/* Creates and destroys objects, so that other threads of the parent are inside the library's locks at a fork. */
static void *churn(void *argument)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);

	NEED(cq);
	init.send_cq = init.recv_cq = cq;
	while (!stop) {
		struct ibv_pd *domain = ibv_alloc_pd(context);
		struct ibv_mr *mr = ibv_reg_mr(domain, a.memory, 4096, 0);
		struct ibv_qp *qp = ibv_create_qp(domain, &init);

		NEED(domain && mr && qp);
		ibv_destroy_qp(qp);
		ibv_dereg_mr(mr);
		ibv_dealloc_pd(domain);
	}
	ibv_destroy_cq(cq);
	return argument;
}

/* Opens the device again. Devices that the parent listed are still valid. */
static int anew(struct ibv_device *device)
{
	alarm(20);
	failures = 0;
	context = ibv_open_device(device);
	NEED(context);
	connect_two();
	exchange();
	return close_pair(&a, &b);
}

static void fork_and_wait(int (*run)(struct ibv_device *), struct ibv_device *device)
{
	pid_t pid = fork();
	int status = -1;

	NEED(pid >= 0);
	if (pid == 0)
		_exit(run(device));
	NEED(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static pthread_barrier_t in_the_loader;

static int stay(struct dl_phdr_info *info, size_t size, void *argument)
{
	(void)info, (void)size, (void)argument;
	pthread_barrier_wait(&in_the_loader);
	pthread_barrier_wait(&in_the_loader);
	return 1;
}

static void *hold_the_loader(void *argument)
{
	dl_iterate_phdr(stay, NULL);
	return argument;
}

/* A thread of the parent holds the lock of the C library's loader meanwhile, which nobody gives back in the child. */
static void fork_under_the_loader(struct ibv_device *device)
{
	pthread_t thread;

	NEED(pthread_barrier_init(&in_the_loader, NULL, 2) == 0);
	NEED(pthread_create(&thread, NULL, hold_the_loader, NULL) == 0);
	pthread_barrier_wait(&in_the_loader);
	fork_and_wait(anew, device);
	pthread_barrier_wait(&in_the_loader);
	pthread_join(thread, NULL);
}

static int use_the_parents(struct ibv_device *device)
{
	(void)device;
	return child();
}

int main(void)
{
	pthread_t threads[3];

	context = open_device();
	connect_two();
	exchange();
	for (int round = 0; round < 3; round++) {
		fork_and_wait(use_the_parents, NULL);
		exchange();
	}
	fork_under_the_loader(context->device);
#ifndef __SANITIZE_ADDRESS__
	/* AddressSanitizer's allocator has locks, which a child inherits from the threads of its parent. */
	for (int i = 0; i < 3; i++)
		NEED(pthread_create(&threads[i], NULL, churn, NULL) == 0);
	for (int round = 0; round < 60; round++)
		fork_and_wait(anew, context->device);
	stop = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
#else
	(void)threads, (void)churn;
	fork_and_wait(anew, context->device);
#endif
	return close_pair(&a, &b);
}
