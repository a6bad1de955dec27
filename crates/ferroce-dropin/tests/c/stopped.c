/* A program that is stopped, as by SIGSTOP, a debugger or a frozen container, for longer than all timeouts of its peer. By shared memory
 * nothing can get lost, so its peer waits, wherever the program was stopped: before it looked at a message, behind that and in front of
 * its acknowledgement, or under traffic. By the wire the peer gives up, as there is nobody who could answer. A requester that was
 * itself stopped gives up nothing, on either way. */
#include "pair.h"

#include <signal.h>
#include <sys/wait.h>

/* Longer than eight timeouts of 17 ms. */
static const struct timespec LONG = { .tv_nsec = 400 * 1000 * 1000 };

/* `READS` of the length `PIECE` are more than the shared memory between two programs holds. */
enum { LENGTH = 256, DEPTH = 8, STOPS = 6, STREAM = 200, READS = 4, PIECE = 1 << 18 };
/* What the other program does with a message, by its immediate. */
enum { ANSWER, STOP_AND_ANSWER, DROP, END };

static int talk[2];
static pid_t other;
static struct end end;
static struct ibv_mr *mr;
static char *memory;

static void exchange(void *out, void *in, size_t len)
{
	NEED(write(talk[0], out, len) == (ssize_t)len && read(talk[0], in, len) == (ssize_t)len);
}

struct place {
	uint32_t qpn, rkey;
	uint64_t addr;
};

static struct place connected(void)
{
	struct place here, there;

	end = make_end();
	memory = calloc(READS, PIECE);
	mr = ibv_reg_mr(pd, memory, READS * PIECE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	NEED(memory && mr);
	here = (struct place){ end.qp->qp_num, mr->rkey, (uintptr_t)memory };
	exchange(&here, &there, sizeof(here));
	to_rts(&end, there.qpn);
	return there;
}

static void receive(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	NEED(ibv_post_recv(end.qp, &wr, &bad) == 0);
}

static void request(enum ibv_wr_opcode opcode, uint32_t imm, const struct place *at, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = imm,
	}, *bad;

	if (at) {
		wr.wr.rdma.remote_addr = at->addr;
		wr.wr.rdma.rkey = at->rkey;
	}
	NEED(ibv_post_send(end.qp, &wr, &bad) == 0);
}

static struct ibv_wc polled(void)
{
	struct ibv_wc wc;
	int got;

	do
		got = ibv_poll_cq(end.cq, 1, &wc);
	while (got == 0);
	NEED(got == 1);
	return wc;
}

/* Serves until the other end says that it is over. */
static void serve(void)
{
	struct ibv_wc wc;

	NEED(read(talk[0], (char[1]){ 0 }, 1) == 1);
	open_pd();
	connected();
	for (int i = 0; i < DEPTH; i++)
		receive();
	exchange("r", (char[1]){ 0 }, 1);
	do {
		wc = polled();
		NEED(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode != IBV_WC_RECV)
			continue;
		if (wc.imm_data == STOP_AND_ANSWER)
			raise(SIGSTOP);
		receive();
		if (wc.imm_data != DROP)
			request(IBV_WR_SEND, 0, NULL, LENGTH);
	} while (wc.opcode != IBV_WC_RECV || wc.imm_data != END);
	/* The answer is acknowledged. */
	while (polled().opcode != IBV_WC_SEND)
		;
}

static void let_it_be_stopped(void)
{
	int status;

	NEED(waitpid(other, &status, WUNTRACED) == other && WIFSTOPPED(status));
	nanosleep(&LONG, NULL);
	NEED(kill(other, SIGCONT) == 0);
}

/* A message and its answer. */
static void ask(uint32_t what)
{
	int sent = 0, answered = 0;

	receive();
	request(IBV_WR_SEND_WITH_IMM, what, NULL, LENGTH);
	if (what == STOP_AND_ANSWER)
		let_it_be_stopped();
	while (!sent || !answered) {
		struct ibv_wc wc = polled();

		NEED(wc.status == IBV_WC_SUCCESS);
		*(wc.opcode == IBV_WC_RECV ? &answered : &sent) = 1;
	}
}

/* Messages and READs without a pause, in the midst of which the other end is stopped. */
static void stream(const struct place *there, int stop_at)
{
	int posted = 0, done = 0;

	while (done < STREAM) {
		struct ibv_wc wc;

		while (posted < STREAM && posted - done < DEPTH) {
			if (posted++ % 2)
				request(IBV_WR_RDMA_READ, 0, there, LENGTH);
			else
				request(IBV_WR_SEND_WITH_IMM, DROP, NULL, LENGTH);
		}
		if (done++ == stop_at) {
			NEED(kill(other, SIGSTOP) == 0);
			let_it_be_stopped();
		}
		wc = polled();
		if (wc.status != IBV_WC_SUCCESS)
			fprintf(stderr, "message %d: %s\n", done, ibv_wc_status_str(wc.status));
		NEED(wc.status == IBV_WC_SUCCESS);
	}
}

/* The requester is the one that is stopped, while the answers to its READs come. */
static void stop_here(const struct place *there)
{
	int status;
	pid_t stopper = fork();

	NEED(stopper >= 0);
	if (stopper == 0) {
		pid_t parent = getppid();

		kill(parent, SIGSTOP);
		nanosleep(&LONG, NULL);
		kill(parent, SIGCONT);
		_exit(0);
	}
	do {
		for (int i = 0; i < READS; i++)
			request(IBV_WR_RDMA_READ, 0, there, PIECE);
		for (int i = 0; i < READS; i++)
			NEED(polled().status == IBV_WC_SUCCESS);
	} while (waitpid(stopper, &status, WNOHANG) == 0);
	CHECK(status == 0);
}

static int run(const char *datapath)
{
	struct place there;
	int lossless = strcmp(datapath, "udp") != 0;

	/* The buffer of a stopped program overflows. */
	retry_cnt = lossless ? 0 : 7;
	/* READs need the other program, too. */
	setenv("FERROCE_DIRECT", "off", 1);
	setenv("FERROCE_DATAPATH", datapath, 1);
	int ends[2];

	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	other = fork();
	NEED(other >= 0);
	talk[0] = ends[other == 0];
	close(ends[other != 0]);
	if (other == 0) {
		serve();
		exit(failures != 0);
	}
	/* The broker of both is in this process. */
	open_pd();
	NEED(write(talk[0], "", 1) == 1);
	there = connected();
	exchange("r", (char[1]){ 0 }, 1);
	/* By the wire the other end may wait for an acknowledgement when this one is stopped, and gives up. */
	if (lossless)
		ask(ANSWER);
	stop_here(&there);
	if (lossless) {
		for (int i = 0; i < STOPS; i++) {
			stop_here(&there);
			ask(STOP_AND_ANSWER);
			stream(&there, 10 + 29 * i);
		}
		ask(END);
		int status;

		CHECK(waitpid(other, &status, 0) == other && status == 0);
	} else {
		int status;

		NEED(kill(other, SIGSTOP) == 0);
		NEED(waitpid(other, &status, WUNTRACED) == other && WIFSTOPPED(status));
		request(IBV_WR_SEND_WITH_IMM, DROP, NULL, LENGTH);
		CHECK(polled().status == IBV_WC_RETRY_EXC_ERR);
		NEED(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
	}
	return failures != 0;
}

int main(void)
{
	static const char *const datapaths[] = { "auto", "udp" };

	raise_lo();
	alarm(50);
	for (int i = 0; i < 2; i++) {
		int status;
		pid_t pid = fork();

		NEED(pid >= 0);
		if (pid == 0)
			exit(run(datapaths[i]));
		NEED(waitpid(pid, &status, 0) == pid);
		if (status)
			fprintf(stderr, "by %s: status %x\n", datapaths[i], status);
		CHECK(status == 0);
	}
	return finish();
}
