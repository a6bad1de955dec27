/* Work requests that fail, each for another reason. The library tells the reason on standard error, once; the test looks at the lines.
 * With WAIT in the environment the program waits for the end of its standard input before it ends. */
#include "apart.h"

#include <signal.h>
#include <sys/wait.h>

static struct end near_end, far_end;

/* Two fresh ends, connected; the far one takes requests of `psn_ahead` PSNs later. */
static void connect_both(uint32_t psn_ahead)
{
	near_end = make_end();
	far_end = make_end();
	to_rts(&near_end, far_end.qp->qp_num);
	first_psn += psn_ahead;
	to_rts(&far_end, near_end.qp->qp_num);
	first_psn -= psn_ahead;
}

static void free_ends(void)
{
	free_end(&near_end);
	free_end(&far_end);
}

static int ask(enum ibv_wr_opcode opcode, size_t length, uint64_t ahead, uint32_t lkey_off, uint32_t rkey_off)
{
	struct ibv_sge sge = { .addr = (uintptr_t)near_end.memory, .length = length, .lkey = near_end.mr->lkey ^ lkey_off };
	struct ibv_send_wr wr = {
		.wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)far_end.memory + ahead;
	wr.wr.rdma.rkey = far_end.mr->rkey ^ rkey_off;
	return ibv_post_send(near_end.qp, &wr, &bad);
}

/* The next completion of an end, while both ends are polled as a program does. */
static enum ibv_wc_status next(struct end *end, struct end *other)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(end->cq, 1, &wc) == 0)
		if (other)
			ibv_poll_cq(other->cq, 0, NULL);
	return wc.status;
}

static int add(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)near_end.memory, .length = 8, .lkey = near_end.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.atomic = { .remote_addr = (uintptr_t)far_end.memory, .rkey = far_end.mr->rkey, .compare_add = 1 },
	}, *bad;

	return ibv_post_send(near_end.qp, &wr, &bad);
}

static void deregister(struct end *end)
{
	NEED(ibv_dereg_mr(end->mr) == 0);
	end->mr = ibv_reg_mr(pd, end->memory + 4096, 4096, IBV_ACCESS_LOCAL_WRITE);
	NEED(end->mr);
}

/* An end in another process, which waits to be killed. */
static void other_end(void)
{
	be_told();
	open_pd();
	end = make_end();
	to_rts(&end, exchanged().qpn);
	post_receive(&end, 1, 0, 64);
	tell();
	pause();
}

/* A completion queue that overflows; what the poll behind that says. */
static int overflown(void)
{
	struct ibv_cq *small = ibv_create_cq(context, 1, NULL, NULL, 0), *before;
	struct ibv_qp_init_attr init = {
		.recv_cq = small, .send_cq = small, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_async_event event;
	struct ibv_wc wc;
	int polled;

	NEED(small);
	near_end = make_end();
	far_end = make_end();
	NEED(ibv_destroy_qp(near_end.qp) == 0);
	NEED((near_end.qp = ibv_create_qp(pd, &init)));
	before = near_end.cq;
	to_rts(&near_end, far_end.qp->qp_num);
	to_rts(&far_end, near_end.qp->qp_num);
	for (int count = 0; count <= small->cqe; count++)
		NEED(ask(IBV_WR_RDMA_WRITE, 8, 0, 0, 0) == 0);
	NEED(ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == small);
	ibv_ack_async_event(&event);
	while ((polled = ibv_poll_cq(small, 1, &wc)) > 0)
		;
	NEED(ibv_get_async_event(context, &event) == 0);
	ibv_ack_async_event(&event);
	free_end(&far_end);
	NEED(ibv_destroy_qp(near_end.qp) == 0 && ibv_destroy_cq(small) == 0);
	init.send_cq = init.recv_cq = before;
	NEED((near_end.qp = ibv_create_qp(pd, &init)));
	far_end = make_end();
	return polled;
}

static void story(const char *name, enum ibv_wc_status got, enum ibv_wc_status wanted)
{
	fprintf(stderr, "story: %s\n", name);
	CHECK(got == wanted);
	free_ends();
}

int main(void)
{
	struct ibv_qp_attr to_reset = { .qp_state = IBV_QPS_RESET };
	int ends[2], status;
	pid_t other;

	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	NEED((other = fork()) >= 0);
	talk = ends[!other];
	close(ends[!!other]);
	if (other == 0)
		other_end();
	open_pd();
	retry_cnt = 2;
	rnr_retry = 2;

	connect_both(0);
	NEED(ask(IBV_WR_RDMA_WRITE, 8, 0, 0, 0x100) == 0);
	story("a wrong rkey", next(&near_end, &far_end), IBV_WC_REM_ACCESS_ERR);

	connect_both(0);
	NEED(ask(IBV_WR_RDMA_READ, 8, ROOM - 4, 0, 0) == 0);
	story("behind the region", next(&near_end, &far_end), IBV_WC_REM_ACCESS_ERR);

	connect_both(0);
	post_receive(&far_end, 1, 0, 16);
	NEED(ask(IBV_WR_SEND, 4096, 0, 0, 0) == 0);
	CHECK(next(&far_end, &near_end) == IBV_WC_LOC_LEN_ERR);
	story("a receive that is too short", next(&near_end, &far_end), IBV_WC_REM_INV_REQ_ERR);

	connect_both(0);
	NEED(ask(IBV_WR_SEND, 8, 0, 0, 0) == 0);
	story("no receive", next(&near_end, &far_end), IBV_WC_RNR_RETRY_EXC_ERR);

	connect_both(0);
	NEED(ask(IBV_WR_SEND, 8, 0, 0x100, 0) == 0);
	story("a wrong lkey", next(&near_end, &far_end), IBV_WC_LOC_PROT_ERR);

	near_end = make_end();
	far_end = make_end();
	to_rts(&near_end, far_end.qp->qp_num);
	NEED(ask(IBV_WR_SEND, 8, 0, 0, 0) == 0);
	story("a peer that is not in RTR", next(&near_end, &far_end), IBV_WC_RETRY_EXC_ERR);

	connect_both(0);
	post_receive(&far_end, 1, 0, 64);
	NEED(ask(IBV_WR_SEND, 8, 0, 0, 0) == 0);
	CHECK(next(&near_end, &far_end) == IBV_WC_SUCCESS);
	NEED(ibv_modify_qp(far_end.qp, &to_reset, IBV_QP_STATE) == 0);
	NEED(ask(IBV_WR_RDMA_READ, 8, 0, 0, 0) == 0);
	story("a peer that was reset", next(&near_end, &far_end), IBV_WC_RETRY_EXC_ERR);

	connect_both(1 << 22);
	NEED(ask(IBV_WR_RDMA_READ, 8, 0, 0, 0) == 0);
	story("PSNs that do not fit", next(&near_end, &far_end), IBV_WC_RETRY_EXC_ERR);

	near_end = make_end();
	far_end = make_end();
	to_rts(&near_end, far_end.qp->qp_num);
	path_mtu = IBV_MTU_256;
	to_rts(&far_end, near_end.qp->qp_num);
	path_mtu = IBV_MTU_1024;
	NEED(ask(IBV_WR_RDMA_WRITE, 1000, 0, 0, 0) == 0);
	story("a path_mtu that differs", next(&near_end, &far_end), IBV_WC_REM_INV_REQ_ERR);

	connect_both(0);
	deregister(&far_end);
	NEED(add() == 0);
	story("a deregistered rkey", next(&near_end, &far_end), IBV_WC_REM_ACCESS_ERR);

	connect_both(0);
	struct ibv_mr old = *near_end.mr;

	deregister(&near_end);
	NEED(ask(IBV_WR_RDMA_WRITE, 8, 0, old.lkey ^ near_end.mr->lkey, 0) == 0);
	story("a deregistered lkey", next(&near_end, &far_end), IBV_WC_LOC_PROT_ERR);

	end = near_end = make_end();
	far_end = make_end();
	tell();
	to_rts(&near_end, exchanged().qpn);
	be_told();
	NEED(ask(IBV_WR_SEND, 8, 0, 0, 0) == 0);
	CHECK(next(&near_end, NULL) == IBV_WC_SUCCESS);
	NEED(kill(other, SIGKILL) == 0 && waitpid(other, &status, 0) == other);
	NEED(ask(IBV_WR_SEND, 8, 0, 0, 0) == 0);
	story("a peer that was killed", next(&near_end, NULL), IBV_WC_RETRY_EXC_ERR);

	story("a full completion queue", overflown() < 0, 1);

	/* More are flushed behind it than the recorder has room for. */
	connect_both(0);
	NEED(ask(IBV_WR_RDMA_READ, 8, 0, 0x100, 0) == 0);
	CHECK(next(&near_end, &far_end) == IBV_WC_LOC_PROT_ERR);
	for (int count = 0; count < 100; count++) {
		NEED(ask(IBV_WR_SEND, 8, 0, 0, 0) == 0);
		CHECK(next(&near_end, NULL) == IBV_WC_WR_FLUSH_ERR);
	}
	story("a hundred flushes", IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR);

	/* What is flushed is not told. */
	connect_both(0);
	post_receive(&far_end, 1, 0, 64);
	to_reset.qp_state = IBV_QPS_ERR;
	NEED(ibv_modify_qp(far_end.qp, &to_reset, IBV_QP_STATE) == 0);
	story("a flush", next(&far_end, NULL), IBV_WC_WR_FLUSH_ERR);

	if (getenv("WAIT"))
		while (getchar() != EOF)
			;
	return close_pd();
}
