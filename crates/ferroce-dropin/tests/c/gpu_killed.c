/* Programs that are killed in the middle of messages to and from the memory of a GPU: the other end gets an error, and goes on with the
 * next one. */
#include "apart.h"
#include "gpu.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { LENGTH = 8 << 20, ROUNDS = 3 };

static struct place there;

static void on_host(void)
{
	NEED(ibv_dereg_mr(end.mr) == 0);
	free(end.memory);
	NEED((end.memory = malloc(LENGTH)) && (end.mr = ibv_reg_mr(pd, end.memory, LENGTH, ALL)));
}

/* Writes and reads until an error; the number of messages. */
static unsigned int stream(unsigned int most)
{
	unsigned int done = 0;

	while (done < most) {
		request(done % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, LENGTH, &there);
		if (next_wc(&end).status != IBV_WC_SUCCESS)
			break;
		done++;
	}
	return done;
}

/* The program of one round: the initiator, or the target that another one writes to. */
static void child(int initiates)
{
	/* A test that fails leaves none behind. */
	NEED(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	load_cuda();
	retry_cnt = 3;
	timeout_code = 14;
	open_pd();
	end = make_end();
	on_gpu(&end, LENGTH);
	fill(end.memory, LENGTH, initiates ? 9 : 7);
	there = exchanged();
	to_rts(&end, there.qpn);
	exchanged();
	if (initiates)
		stream(1u << 30);
	for (;;)
		pause();
}

/* A child of this round, not yet connected. */
static pid_t begin(int initiates)
{
	int sockets[2];

	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	pid_t pid = fork();

	NEED(pid >= 0);
	talk = sockets[pid == 0];
	close(sockets[pid != 0]);
	if (!pid)
		child(initiates);
	return pid;
}

static void killed_by(pid_t pid)
{
	NEED(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

int main(void)
{
	pid_t children[ROUNDS][2];
	int talks[ROUNDS][2];

	/* Before the device is opened, because children of such a program have none. */
	for (int round = 0; round < ROUNDS; round++)
		for (int initiates = 0; initiates < 2; initiates++) {
			children[round][initiates] = begin(initiates);
			talks[round][initiates] = talk;
		}
	load_cuda();
	retry_cnt = 3;
	timeout_code = 14;
	open_pd();
	for (int round = 0; round < ROUNDS; round++)
		for (int initiates = 0; initiates < 2; initiates++) {
			pid_t pid = children[round][initiates];

			talk = talks[round][initiates];
			end = make_end();
			/* In one round the memory of this end is the host's, which its peer would copy directly otherwise. */
			if (round == 1)
				on_host();
			else
				on_gpu(&end, LENGTH);
			fill(end.memory, LENGTH, 7);
			there = exchanged();
			to_rts(&end, there.qpn);
			exchanged();
			if (!initiates) {
				NEED(stream(4) == 4 && differs(end.memory, LENGTH, 7) == LENGTH);
				/* Some are in flight when the other end is killed. */
				for (int i = 0; i < 4; i++)
					request(IBV_WR_RDMA_WRITE, LENGTH, &there);
				usleep(1000 * (round + 1));
				killed_by(pid);
				enum ibv_wc_status last = 0;

				for (int i = 0; i < 4; i++)
					last = next_wc(&end).status;
				CHECK(last == IBV_WC_RETRY_EXC_ERR || last == IBV_WC_WR_FLUSH_ERR ||
				      last == IBV_WC_SUCCESS);
			} else {
				/* At least the front of the first message has arrived. */
				alarm(60);
				while (differs(end.memory, 64, 9) != 64)
					usleep(1000);
				alarm(0);
				usleep(7000 * round);
				killed_by(pid);
			}
			CHECK(ibv_destroy_qp(end.qp) == 0 && ibv_dereg_mr(end.mr) == 0 && ibv_destroy_cq(end.cq) == 0);
			CHECK(round == 1 || cuMemFree_v2((CUdeviceptr)end.memory) == 0);
		}
	return finish();
}
