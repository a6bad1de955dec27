/* A child without exec: it may use none of its parent's objects, and open the device anew; the parent goes on. */
#include "pair.h"

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
	a = make_end();
	b = make_end();
	to_rts(&a, b.qp->qp_num);
	to_rts(&b, a.qp->qp_num);
}

/* Whatever these return, they return, and touch nothing of the parent's. */
static int child(void)
{
	struct ibv_wc wc;
	struct ibv_port_attr port;

	alarm(20);
	failures = 0;
	post(&a, IBV_WR_SEND, 3, 0, 16, &b, 0, IBV_SEND_SIGNALED);
	ibv_poll_cq(a.cq, 1, &wc);
	ibv_query_port(context, 1, &port);
	ibv_destroy_qp(a.qp);
	ibv_destroy_qp(b.qp);
	ibv_dereg_mr(a.mr);
	ibv_destroy_cq(a.cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return finish();
}

int main(void)
{
	context = open_device();
	connect_two();
	exchange();
	for (int round = 0; round < 3; round++) {
		pid_t pid = fork();
		int status = -1;

		NEED(pid >= 0);
		if (pid == 0)
			_exit(child());
		NEED(waitpid(pid, &status, 0) == pid);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		exchange();
	}
	free_end(&a);
	free_end(&b);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	return finish();
}
