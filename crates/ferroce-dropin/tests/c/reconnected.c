/* The target of WRITEs and READs ends its connection and begins another one with the same numbers, and its peer does not. A card knows by
 * the PSN that what the peer posts is of the old connection: it reaches no memory. With or without packets. The other way round a peer may
 * begin earlier than the target, and is served as soon as that follows. */
#include "apart.h"

#include <sys/wait.h>

enum { LENGTH = 64, OLD = 5, ROUNDS = 20 };

/* Both ends come here. */
static void meet(void)
{
	exchanged();
}

static void begin(uint32_t qpn, int another)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };

	NEED(ibv_modify_qp(end.qp, &reset, IBV_QP_STATE) == 0);
	first_psn = another ? 0x654321 : 0x123456;
	to_rts(&end, qpn);
}

static enum ibv_wc_status status_of(enum ibv_wr_opcode opcode, const struct place *at)
{
	request(opcode, LENGTH, at);
	return next_wc(&end).status;
}

static void target(void)
{
	be_told();
	open_pd();
	end = make_end();
	struct place there = exchanged();

	begin(there.qpn, 0);
	meet();
	for (int round = 0; round < ROUNDS; round++) {
		meet();
		CHECK(end.memory[0] == 1);
		begin(there.qpn, 0);
		memset(end.memory, 0, LENGTH);
		meet();
		meet();
		CHECK(end.memory[0] == 0);
		begin(there.qpn, 0);
		meet();
		meet();
		CHECK(end.memory[0] == 1);
		be_told();
		begin(there.qpn, 1);
		meet();
		CHECK(end.memory[0] == 3);
		begin(there.qpn, 0);
		meet();
	}
}

static int run(int way)
{
	int ends[2], status;

	failures = 0;
	if (way == 1)
		setenv("FERROCE_DIRECT", "off", 1);
	if (way == 2)
		setenv("FERROCE_DATAPATH", "udp", 1);
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
	end = make_end();
	struct place there = exchanged();

	begin(there.qpn, 0);
	meet();
	for (int round = 0; round < ROUNDS; round++) {
		enum ibv_wr_opcode late = round % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;

		memset(end.memory, 1, LENGTH);
		for (int i = 0; i < OLD; i++)
			CHECK(status_of(IBV_WR_RDMA_WRITE, &there) == IBV_WC_SUCCESS);
		meet();
		/* The target has begun another connection. */
		meet();
		memset(end.memory, 2, LENGTH);
		CHECK(status_of(late, &there) == IBV_WC_RETRY_EXC_ERR);
		CHECK(end.memory[0] == 2);
		meet();
		begin(there.qpn, 0);
		meet();
		memset(end.memory, 1, LENGTH);
		CHECK(status_of(IBV_WR_RDMA_WRITE, &there) == IBV_WC_SUCCESS);
		meet();
		/* This end begins the next one earlier, with PSNs of its own. */
		timeout_code = 17;
		begin(there.qpn, 1);
		memset(end.memory, 3, LENGTH);
		request(IBV_WR_RDMA_WRITE, LENGTH, &there);
		tell();
		CHECK(next_wc(&end).status == IBV_WC_SUCCESS);
		meet();
		timeout_code = 12;
		begin(there.qpn, 0);
		meet();
	}
	CHECK(waitpid(other, &status, 0) == other && status == 0);
	return failures != 0;
}

int main(void)
{
	raise_lo();
	for (int way = 0; way < 3; way++) {
		int status;
		pid_t pid = fork();

		NEED(pid >= 0);
		if (pid == 0)
			exit(run(way));
		NEED(waitpid(pid, &status, 0) == pid);
		if (status)
			fprintf(stderr, "way %d: status %x\n", way, status);
		CHECK(status == 0);
	}
	return finish();
}
