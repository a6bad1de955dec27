/* Signal handlers that call the library: one exits the program during a ping-pong, one posts to another queue pair. */
#include "pair.h"

#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

static struct end a, b, c, d;

static void every(int microseconds, void (*handler)(int))
{
	struct itimerval timer = {
		.it_interval.tv_usec = microseconds,
		.it_value.tv_usec = microseconds,
	};

	signal(SIGALRM, handler);
	NEED(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* Takes one completion, without the alarm of next_wc. */
static void take_wc(struct end *end)
{
	struct ibv_wc wc;
	int got;

	while ((got = ibv_poll_cq(end->cq, 1, &wc)) == 0)
		;
	NEED(got == 1);
	NEED(wc.status == IBV_WC_SUCCESS);
}

static void leave(int signal)
{
	(void)signal;
	exit(0);
}

/* A ping-pong with one signaled message in eight, so that acknowledgements are delayed. */
static void play_until_the_end(int microseconds)
{
	open_pair(&a, &b);
	for (int i = 0; i < 8; i++) {
		post_receive(&a, 1, 0, 64);
		post_receive(&b, 1, 0, 64);
	}
	every(microseconds, leave);
	for (;;) {
		NEED(post(&a, IBV_WR_SEND, 2, 128, 16, &b, 0, IBV_SEND_SIGNALED) == 0);
		take_wc(&b);
		post_receive(&b, 1, 0, 64);
		NEED(post(&b, IBV_WR_SEND, 2, 128, 16, &a, 0, IBV_SEND_SIGNALED) == 0);
		for (int i = 0; i < 2; i++) {
			take_wc(&a);
		}
		post_receive(&a, 1, 0, 64);
		take_wc(&b);
	}
}

static void exit_in_a_handler(void)
{
	for (int round = 0; round < 40; round++) {
		pid_t pid = fork();
		int status = -1;

		NEED(pid >= 0);
		if (pid == 0) {
			play_until_the_end(2000 + 171 * round);
		}
		for (int waits = 0; waits < 2000 && waitpid(pid, &status, WNOHANG) == 0; waits++)
			usleep(5000);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		if (status == -1) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return;
		}
	}
}

static volatile int posted, failed;

static void post_elsewhere(int signal)
{
	(void)signal;
	int error = post(&c, IBV_WR_RDMA_WRITE, 3, 0, 64, &d, 4096, IBV_SEND_SIGNALED);

	if (error && error != ENOMEM)
		failed = error;
	posted += !error;
}

/* The handler's queue pairs have a separate completion queue, which the program polls between its messages. */
static void post_in_a_handler(void)
{
	struct ibv_wc wc[4];
	int completed = 0, got;

	open_pair(&a, &b);
	make_pair(&c, &d);
	every(400, post_elsewhere);
	for (int round = 0; round < 4000 || posted < 100; round++) {
		NEED(post(&a, IBV_WR_RDMA_WRITE, 2, 0, 32768, &b, 32768, IBV_SEND_SIGNALED) == 0);
		take_wc(&a);
		sigset_t alarms, before;

		sigemptyset(&alarms);
		sigaddset(&alarms, SIGALRM);
		sigprocmask(SIG_BLOCK, &alarms, &before);
		while ((got = ibv_poll_cq(c.cq, 4, wc)) > 0)
			for (int i = 0; i < got; i++)
				completed += wc[i].status == IBV_WC_SUCCESS;
		NEED(got == 0);
		sigprocmask(SIG_SETMASK, &before, NULL);
	}
	every(0, SIG_IGN);
	while (completed < posted && (got = ibv_poll_cq(c.cq, 1, wc)) >= 0)
		completed += got;
	CHECK(failed == 0);
	CHECK(completed == posted);
	free_end(&a);
	free_end(&b);
	free_end(&c);
	free_end(&d);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
}

int main(void)
{
	exit_in_a_handler();
	post_in_a_handler();
	return finish();
}
