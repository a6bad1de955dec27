/* How fast WRITEs go from memory of a GPU to memory of the same GPU in another program, beside copies through pinned memory by hand: a
 * copy to the host and one back, one after the other. Prints a line for each size; fails only if data are wrong. SHORT ends at 1 MiB. */
#include "apart.h"
#include "gpu.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

enum { MOST = 64 << 20, ROUNDS = 5 };

static struct place there;

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec * 1e-9;
}

static double middle(double *values)
{
	for (int i = 1; i < ROUNDS; i++)
		for (int j = i; j > 0 && values[j - 1] > values[j]; j--) {
			double value = values[j];

			values[j] = values[j - 1];
			values[j - 1] = value;
		}
	return values[ROUNDS / 2];
}

static void connect_apart(void)
{
	load_cuda();
	open_pd();
	end = make_end();
	on_gpu(&end, MOST);
	there = exchanged();
	to_rts(&end, there.qpn);
	exchanged();
}

/* Seconds of a message, several of which are in flight. */
static double by_rdma(size_t length, int times)
{
	double begun = now();

	for (int posted = 0, done = 0; done < times; done++) {
		for (; posted < times && posted < done + 4; posted++)
			request(IBV_WR_RDMA_WRITE, length, &there);
		NEED(next_wc(&end).status == IBV_WC_SUCCESS);
	}
	return (now() - begun) / times;
}

static double by_hand(size_t length, int times, char *pinned)
{
	double begun = now();

	for (int i = 0; i < times; i++) {
		copy(pinned, end.memory, length);
		copy(end.memory + MOST - length, pinned, length);
	}
	return (now() - begun) / times;
}

int main(void)
{
	int sockets[2], status;
	pid_t pid;

	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	NEED((pid = fork()) >= 0);
	talk = sockets[pid == 0];
	close(sockets[pid != 0]);
	if (!pid) {
		char word;

		NEED(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		connect_apart();
		while (read(talk, &word, 1) == 1) {
			word = differs(end.memory, MOST, 3) == MOST;
			NEED(write(talk, &word, 1) == 1);
		}
		_exit(0);
	}
	connect_apart();
	char *pinned = aligned_alloc(4096, MOST), word = 0;

	NEED(pinned && cuMemHostRegister_v2(pinned, MOST, 1) == 0);
	fill(end.memory, MOST, 3);
	by_rdma(MOST, 1);
	NEED(write(talk, &word, 1) == 1 && read(talk, &word, 1) == 1);
	CHECK(word == 1);
	size_t most = getenv("SHORT") ? 1 << 20 : MOST;

	for (size_t length = 8; length <= most; length *= length < 4096 ? 512 : 4) {
		double rdma[ROUNDS], hand[ROUNDS];
		int times = length < 1 << 20 ? 100 : length < MOST ? 20 : 4;

		for (int round = 0; round < ROUNDS; round++) {
			rdma[round] = by_rdma(length, times);
			hand[round] = by_hand(length, times, pinned);
		}
		double ours = middle(rdma), theirs = middle(hand);

		printf("%9zu octets: WRITE %8.1f us %7.3f GB/s, copies by hand %8.1f us %7.3f GB/s, ratio %.2f\n", length, ours * 1e6,
		       length / ours / 1e9, theirs * 1e6, length / theirs / 1e9, theirs / ours);
	}
	close(talk);
	NEED(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return finish();
}
