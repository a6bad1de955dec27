/* Small WRITEs of direct copies that a program posts in quick succession wait for each other. They leave before the queue pair changes or
 * ends. */
#include "apart.h"

#include <sys/wait.h>

enum { POSTS = 16, ROUNDS = 300, WARM = 4 };

/* So many WRITEs of `tag`, to one word each; the last one may be signaled. */
static void post_all(const struct place *to, uint64_t tag, int count, unsigned int last)
{
	struct ibv_send_wr wr[POSTS], *bad;
	struct ibv_sge sge = { (uintptr_t)end.memory, 8, end.mr->lkey };

	memcpy(end.memory, &tag, 8);
	for (int i = 0; i < count; i++)
		wr[i] = (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = i + 1 < count ? 0 : last, .wr.rdma = { to->addr + 8 * i, to->rkey } };
	for (int i = 0; i < count; i++)
		CHECK(ibv_post_send(end.qp, &wr[i], &bad) == 0);
}

static void target(void)
{
	be_told();
	open_pd();
	for (int round = 0; round < ROUNDS; round++) {
		end = make_end();
		struct place there = exchanged();
		uint64_t word;

		to_rts(&end, there.qpn);
		tell();
		be_told();
		for (int i = 0; i < POSTS - 1; i++) {
			memcpy(&word, end.memory + 8 * i, 8);
			CHECK(word == (uint64_t)round + 1);
		}
		free_end(&end);
	}
}

int main(void)
{
	int ends[2], status;

	raise_lo();
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	pid_t other = fork();

	NEED(other >= 0);
	talk = ends[other == 0];
	close(ends[other != 0]);
	if (other == 0) {
		target();
		exit(failures != 0);
	}
	open_pd();
	tell();
	for (int round = 0; round < ROUNDS; round++) {
		end = make_end();
		struct place there = exchanged();
		struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
		struct ibv_qp_attr timer = { .qp_state = IBV_QPS_RTS, .min_rnr_timer = 13 };

		to_rts(&end, there.qpn);
		be_told();
		/* The program streams. */
		for (int i = 0; i < WARM; i++) {
			post_all(&there, 7, POSTS, IBV_SEND_SIGNALED);
			CHECK(next_wc(&end).status == IBV_WC_SUCCESS);
		}
		post_all(&there, round + 1, POSTS - 1, 0);
		if (round % 3 == 0)
			CHECK(ibv_modify_qp(end.qp, &error, IBV_QP_STATE) == 0);
		else if (round % 3 == 1)
			CHECK(ibv_modify_qp(end.qp, &timer, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER) == 0);
		else {
			CHECK(ibv_destroy_qp(end.qp) == 0);
			end.qp = NULL;
		}
		tell();
		if (end.qp)
			CHECK(ibv_destroy_qp(end.qp) == 0);
		CHECK(ibv_dereg_mr(end.mr) == 0);
		CHECK(ibv_destroy_cq(end.cq) == 0);
		CHECK(ibv_destroy_comp_channel(end.channel) == 0);
		free(end.memory);
	}
	CHECK(waitpid(other, &status, 0) == other && status == 0);
	return close_pd();
}
