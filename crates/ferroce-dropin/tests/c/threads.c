/* Objects that are destroyed while other threads use them: calls fail, none crashes or hangs. */
#include "pair.h"

#include <pthread.h>
#include <stdatomic.h>

static struct end a, b;
static atomic_int stop, posted, refused;

static void *post_until_stopped(void *unused)
{
	struct ibv_sge sge = { .addr = (uintptr_t)a.memory, .length = 256, .lkey = a.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)b.memory;
	wr.wr.rdma.rkey = b.mr->rkey;
	while (!stop) {
		int error = context->ops.post_send(a.qp, &wr, &bad);

		if (!error)
			posted++;
		else if (error == EINVAL)
			refused++;
		else
			CHECK(error == ENOMEM);
	}
	return unused;
}

static void *poll_until_stopped(void *unused)
{
	struct ibv_wc wc[8];

	while (!stop)
		context->ops.poll_cq(a.cq, 8, wc);
	return unused;
}

static void *batch_until_stopped(void *unused)
{
	while (!stop) {
		ibv_wr_start(a.qpx);
		ibv_wr_rdma_write(a.qpx, b.mr->rkey, (uintptr_t)b.memory);
		ibv_wr_set_sge(a.qpx, a.mr->lkey, (uintptr_t)a.memory, 64);
		int error = ibv_wr_complete(a.qpx);

		CHECK(error == 0 || error == EINVAL || error == ENOMEM);
	}
	return unused;
}

static void *query_until_stopped(void *unused)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	while (!stop)
		ibv_query_qp(a.qp, &attr, 0, &init);
	return unused;
}

int main(void)
{
	void *(*users[])(void *) = { post_until_stopped, poll_until_stopped, batch_until_stopped, query_until_stopped };

	open_pd();
	alarm(50);
	for (int round = 0; round < 30; round++) {
		pthread_t thread[4];

		make_pair(&a, &b);
		stop = posted = refused = 0;
		for (int i = 0; i < 4; i++)
			NEED(pthread_create(&thread[i], NULL, users[i], NULL) == 0);
		while (posted < 50)
			usleep(100);
		CHECK(ibv_destroy_qp(a.qp) == 0);
		CHECK(ibv_destroy_cq(a.cq) == 0);
		while (refused < 50)
			usleep(100);
		stop = 1;
		for (int i = 0; i < 4; i++)
			pthread_join(thread[i], NULL);
		CHECK(ibv_destroy_comp_channel(a.channel) == 0);
		CHECK(ibv_dereg_mr(a.mr) == 0);
		free(a.memory);
		free_end(&b);
	}
	return close_pd();
}
