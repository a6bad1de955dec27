/* Programs with one planted fault each, for `FERROCE_CHECK`: argv[1] names the fault, and argv[2], if there, asks for the same
 * program without it. */
#include "pair.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>

enum { LENGTH = 64 };

static struct end a, b;
static bool faulty;
static char *buffer;
static struct ibv_mr *local; /* of `buffer`; no peer may write there */

static int post_sge(struct end *end, enum ibv_wr_opcode opcode, uint64_t wr_id, struct ibv_mr *mr, void *at, uint32_t length,
		    unsigned int flags)
{
	return post_of(end, mr, at, opcode, wr_id, length, &b, 0, flags);
}

/* Polls as many completions of `a`. */
static void drain(int count)
{
	while (count--)
		next_wc(&a);
}

/* More signaled work requests than the completion queue holds. */
static void overrun(void)
{
	int room = a.cq->cqe;
	struct ibv_qp_init_attr init = {
		.send_cq = a.cq,
		.recv_cq = a.cq,
		.cap = { .max_send_wr = room + 1, .max_recv_wr = 1, .max_send_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct end many = a;

	many.qp = ibv_create_qp(pd, &init);
	NEED(many.qp);
	reconnect_ends(&many, &b);
	for (int i = 0; i <= room; i++) {
		CHECK(post(&many, IBV_WR_RDMA_WRITE, i, 0, LENGTH, &b, 0, IBV_SEND_SIGNALED) == 0);
		if (!faulty)
			drain(1);
	}
	CHECK(ibv_destroy_qp(many.qp) == 0);
}

/* The same by two queue pairs, of which neither alone has too many. */
static void overrun_by_two(void)
{
	struct end c[2];
	int room;

	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = a.cq,
			.recv_cq = a.cq,
			.cap = { .max_send_wr = a.cq->cqe, .max_send_sge = 1 },
			.qp_type = IBV_QPT_RC,
		};
		c[i] = a;
		c[i].qp = ibv_create_qp(pd, &init);
		NEED(c[i].qp);
	}
	to_rts(&c[0], c[1].qp->qp_num);
	to_rts(&c[1], c[0].qp->qp_num);
	room = a.cq->cqe;
	for (int i = 0; i <= room; i++) {
		CHECK(post(&c[i % 2], IBV_WR_RDMA_WRITE, i, 0, LENGTH, &b, 0, IBV_SEND_SIGNALED) == 0);
		if (!faulty)
			drain(1);
	}
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(c[i].qp) == 0);
}

static void short_buffer(void)
{
	post_receive(&b, 7, 0, faulty ? LENGTH / 2 : LENGTH);
	CHECK(post(&a, IBV_WR_SEND, 1, 0, LENGTH, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK((next_wc(&b).status == IBV_WC_SUCCESS) == !faulty);
	drain(1);
}

/* From a shared receive queue. */
static void short_shared_buffer(void)
{
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_sge sge = { .addr = (uintptr_t)b.memory, .length = faulty ? 1 : LENGTH, .lkey = b.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 9, .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_qp *own = b.qp;

	NEED(srq);
	struct ibv_qp_init_attr init = {
		.send_cq = b.cq,
		.recv_cq = b.cq,
		.srq = srq,
		.cap = { .max_send_wr = 1, .max_send_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	b.qp = ibv_create_qp(pd, &init);
	NEED(b.qp);
	reconnect_ends(&a, &b);
	CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	CHECK(post(&a, IBV_WR_SEND, 1, 0, LENGTH, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK((next_wc(&b).status == IBV_WC_SUCCESS) == !faulty);
	drain(1);
	CHECK(ibv_destroy_qp(b.qp) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
	b.qp = own;
}

static void changed(enum ibv_wr_opcode opcode)
{
	if (opcode == IBV_WR_SEND)
		post_receive(&b, 7, 0, LENGTH);
	CHECK(post_sge(&a, opcode, 1, local, buffer, LENGTH, IBV_SEND_SIGNALED) == 0);
	if (faulty)
		buffer[3]++;
	drain(1);
	buffer[3]++;
}

static void changed_send(void)
{
	changed(IBV_WR_SEND);
}

static void changed_write(void)
{
	changed(IBV_WR_RDMA_WRITE);
}

/* Posted and polled by the functions of extended queues; the work request is not signaled, a later one is. */
static void changed_extended(void)
{
	struct ibv_poll_cq_attr attr = {};

	ibv_wr_start(a.qpx);
	a.qpx->wr_id = 5;
	a.qpx->wr_flags = 0;
	ibv_wr_rdma_write(a.qpx, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_sge(a.qpx, local->lkey, (uintptr_t)buffer, LENGTH);
	CHECK(ibv_wr_complete(a.qpx) == 0);
	if (faulty)
		buffer[0]++;
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 6, 0, LENGTH, &b, 0, IBV_SEND_SIGNALED) == 0);
	alarm(20);
	while (ibv_start_poll(a.cq_ex, &attr) == ENOENT)
		;
	CHECK(a.cq_ex->wr_id == 6);
	ibv_end_poll(a.cq_ex);
	alarm(0);
}

/* The region of a send. The work request fails, so the fault cannot be left out of the story alone. */
static void local_key(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, LENGTH, 0), ended = *mr;

	if (faulty)
		CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(post_sge(&a, IBV_WR_RDMA_WRITE, 1, &ended, buffer, LENGTH, IBV_SEND_SIGNALED) == 0);
	CHECK((next_wc(&a).status == IBV_WC_SUCCESS) == !faulty);
	if (!faulty)
		CHECK(ibv_dereg_mr(mr) == 0);
}

static void receive_key(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = LENGTH, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	if (faulty)
		CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_post_recv(b.qp, &wr, &bad) == 0);
	CHECK(post(&a, IBV_WR_SEND, 1, 0, LENGTH, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK((next_wc(&b).status == IBV_WC_SUCCESS) == !faulty);
	drain(1);
	if (!faulty)
		CHECK(ibv_dereg_mr(mr) == 0);
}

static void remote_key(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE), *own = b.mr;
	struct ibv_mr ended = *mr;

	if (faulty)
		CHECK(ibv_dereg_mr(mr) == 0);
	b.mr = &ended;
	struct end there = b;
	there.memory = buffer;
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 1, 0, LENGTH, &there, 0, IBV_SEND_SIGNALED) == 0);
	CHECK((next_wc(&a).status == IBV_WC_SUCCESS) == !faulty);
	b.mr = own;
	if (!faulty)
		CHECK(ibv_dereg_mr(mr) == 0);
}

static void unsignaled(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	NEED(!ibv_query_qp(a.qp, &attr, IBV_QP_CAP, &init));
	for (uint32_t i = 0; i < init.cap.max_send_wr; i++)
		CHECK(post(&a, IBV_WR_RDMA_WRITE, i, 0, LENGTH, &b, 0,
			   !faulty && i % 8 == 7 ? IBV_SEND_SIGNALED : 0) == 0);
	if (!faulty)
		drain(init.cap.max_send_wr / 8);
}

static void fence(enum ibv_wr_opcode first, unsigned int flags)
{
	uint32_t length = first == IBV_WR_RDMA_READ ? LENGTH : 8;

	CHECK(post_sge(&a, first, 1, a.mr, a.memory + 64, length, IBV_SEND_SIGNALED) == 0);
	if (!faulty && (flags & IBV_SEND_INLINE))
		drain(1);
	CHECK(post_sge(&a, IBV_WR_RDMA_WRITE, 2, a.mr, a.memory + 64, length,
		       IBV_SEND_SIGNALED | flags | (faulty ? 0 : IBV_SEND_FENCE)) == 0);
	drain(!faulty && (flags & IBV_SEND_INLINE) ? 1 : 2);
	if (faulty)
		return;
	/* One behind a fence begins after all before that. */
	CHECK(post_sge(&a, first, 3, a.mr, a.memory + 64, length, IBV_SEND_SIGNALED) == 0);
	CHECK(post_sge(&a, IBV_WR_RDMA_WRITE, 4, local, buffer, 8, IBV_SEND_SIGNALED | IBV_SEND_FENCE) == 0);
	CHECK(post_sge(&a, IBV_WR_RDMA_WRITE, 5, a.mr, a.memory + 64, length, IBV_SEND_SIGNALED) == 0);
	drain(3);
}

static void fence_read(void)
{
	fence(IBV_WR_RDMA_READ, 0);
}

static void fence_atomic(void)
{
	fence(IBV_WR_ATOMIC_FETCH_AND_ADD, 0);
}

static void fence_inline(void)
{
	fence(IBV_WR_RDMA_READ, IBV_SEND_INLINE);
}

static int wait_for_event(void)
{
	struct ibv_cq *cq;
	void *context_of_cq;
	int failed;

	alarm(30);
	failed = ibv_get_cq_event(a.channel, &cq, &context_of_cq);
	alarm(0);
	if (!failed)
		ibv_ack_cq_events(cq, 1);
	return failed;
}

static void one_event(void)
{
	CHECK(ibv_req_notify_cq(a.cq, 0) == 0);
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 1, 0, LENGTH, &b, 0, IBV_SEND_SIGNALED) == 0);
	NEED(!wait_for_event());
	drain(1);
}

static void woken(int number)
{
	(void)number;
}

/* Copies what the library writes to standard error until it has told its finding, then interrupts the wait. Another process: a thread
 * could arm the queue. */
static pid_t waker(int said, int behind)
{
	pid_t waiter = getpid(), child = fork();
	char text[4096];
	ssize_t got;

	NEED(child >= 0);
	if (child > 0)
		return child;
	while ((got = read(said, text, sizeof(text) - 1)) > 0) {
		text[got] = 0;
		if (write(behind, text, got) != got)
			_exit(1);
		while (strstr(text, "ibv_get_cq_event")) {
			kill(waiter, SIGUSR1);
			usleep(20000);
		}
	}
	_exit(1);
}

/* Waits for an event of a queue that was never armed, or was armed once and had its event. */
static void unarmed(bool once)
{
	struct sigaction action = { .sa_handler = woken };
	int ends[2], behind = dup(2);
	pid_t child;

	if (once || !faulty)
		one_event();
	if (!faulty)
		return;
	NEED(sigaction(SIGUSR1, &action, NULL) == 0);
	NEED(pipe(ends) == 0);
	child = waker(ends[0], behind);
	NEED(dup2(ends[1], 2) == 2);
	CHECK(wait_for_event() == -1);
	NEED(dup2(behind, 2) == 2);
	NEED(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	one_event();
}

static void never_armed(void)
{
	unarmed(false);
}

static void armed_once(void)
{
	unarmed(true);
}

static void reset(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	CHECK(post(&a, IBV_WR_RDMA_WRITE, 1, 0, LENGTH, &b, 0, IBV_SEND_SIGNALED) == 0);
	if (!faulty)
		drain(1);
	CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
}

/* An address of the other family than that of index 0. */
static struct ibv_ah_attr other_family(void)
{
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };

	NEED(!ibv_query_gid(context, 1, 0, &ah.grh.dgid));
	if (faulty) {
		bool v4 = ah.grh.dgid.raw[10] == 0xff;
		memset(&ah.grh.dgid, 0, 16);
		if (v4) {
			ah.grh.dgid.raw[15] = 1;
		} else {
			ah.grh.dgid.raw[10] = ah.grh.dgid.raw[11] = 0xff;
			ah.grh.dgid.raw[12] = 127;
			ah.grh.dgid.raw[15] = 1;
		}
	}
	return ah;
}

static void family_of_handle(void)
{
	struct ibv_ah_attr attr = other_family();
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	CHECK((ah == NULL) == faulty);
	if (ah)
		CHECK(ibv_destroy_ah(ah) == 0);
}

static void family_of_path(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	NEED(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 };
	NEED(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = b.qp->qp_num,
		.min_rnr_timer = 1,
		.ah_attr = other_family(),
	};
	CHECK((ibv_modify_qp(a.qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0) == faulty);
}

static void card_cq(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, faulty ? 40000 : 30000, NULL, NULL, 0);

	NEED(cq);
	CHECK(ibv_destroy_cq(cq) == 0);
}

static void card_qp(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = a.cq,
		.recv_cq = a.cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = faulty ? 31 : 30, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	NEED(qp);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* A region and its domain are left at exit. */
static void leak(void)
{
	struct ibv_pd *domain = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(domain, buffer, LENGTH, 0);

	NEED(domain && mr);
	if (!faulty) {
		CHECK(ibv_dereg_mr(mr) == 0);
		CHECK(ibv_dealloc_pd(domain) == 0);
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} STORIES[] = {
	{ "overrun", overrun },		    { "overrun-by-two", overrun_by_two },
	{ "short-buffer", short_buffer },   { "short-shared-buffer", short_shared_buffer },
	{ "changed-send", changed_send },   { "changed-write", changed_write },
	{ "changed-extended", changed_extended }, { "local-key", local_key },
	{ "receive-key", receive_key },	    { "remote-key", remote_key },
	{ "unsignaled", unsignaled },	    { "fence-read", fence_read },
	{ "fence-atomic", fence_atomic },   { "fence-inline", fence_inline },
	{ "never-armed", never_armed },	    { "armed-once", armed_once },
	{ "reset", reset },		    { "family-of-handle", family_of_handle },
	{ "family-of-path", family_of_path }, { "card-cq", card_cq },
	{ "card-qp", card_qp },		    { "leak", leak },
};

int main(int argc, char **argv)
{
	faulty = argc == 2;
	open_pair(&a, &b);
	buffer = aligned_alloc(4096, 4096);
	NEED(buffer);
	memset(buffer, 0, 4096);
	local = ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
	NEED(local);
	for (size_t i = 0; i < sizeof(STORIES) / sizeof(STORIES[0]); i++)
		if (argc > 1 && !strcmp(argv[1], STORIES[i].name))
			STORIES[i].run();
	CHECK(ibv_dereg_mr(local) == 0);
	return close_pair(&a, &b);
}
