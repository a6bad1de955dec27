/*
 * instructions: what one verb costs, both ends together, as callgrind counts it. One process with two connected RC queue
 * pairs on the first device; the stage `instructions` runs it in valgrind, on each datapath.
 *
 *   instructions ROUNDS     each case ROUNDS times, behind some rounds that are not counted
 *
 * Behind each case it has callgrind write what it counted, under "CASE OPERATIONS".
 */
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

enum { LIST = 32, DEPTH = 128, LARGEST = 4096, WARM = 40 };

static struct ibv_context *context;
static union ibv_gid gid;
static struct ibv_comp_channel *channel;
static struct ibv_cq *sends, *receives;
static struct ibv_qp *near, *far;
static struct ibv_mr *mr;
static char memory[4 * LARGEST] __attribute__((aligned(4096)));

static void die(const char *what)
{
	fprintf(stderr, "instructions: %s\n", what);
	_exit(1);
}

static struct ibv_qp *make(struct ibv_pd *pd, struct ibv_cq *cq, int receives)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { DEPTH, receives, 1, 1, 64 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	if (!qp) die("ibv_create_qp");
	return qp;
}

static void join(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = 15 };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) die("to INIT");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer, .rq_psn = 1,
		.max_dest_rd_atomic = 16, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 64 }, .port_num = 1 } };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) die("to RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 1,
		.max_rd_atomic = 16 };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					     IBV_QP_MAX_QP_RD_ATOMIC)) die("to RTS");
}

static void take(struct ibv_cq *cq, int count)
{
	struct ibv_wc wc[LIST];

	while (count > 0) {
		int found = ibv_poll_cq(cq, count, wc);
		if (found < 0) die("ibv_poll_cq");
		/* Polls in vain are not what the verb costs: the background thread has the packet, and needs the processor. */
		if (!found) sched_yield();
		for (int i = 0; i < found; i++)
			if (wc[i].status) die(ibv_wc_status_str(wc[i].status));
		count -= found;
	}
}

static void receive(int count, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory + 2 * LARGEST, length, mr->lkey };
	struct ibv_recv_wr wr[LIST], *bad;

	for (int i = 0; i < count; i++)
		wr[i] = (struct ibv_recv_wr){ .next = i + 1 < count ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1 };
	if (ibv_post_recv(far, wr, &bad)) die("ibv_post_recv");
}

static void post(enum ibv_wr_opcode opcode, int count, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr wr[LIST], *bad;

	for (int i = 0; i < count; i++) {
		wr[i] = (struct ibv_send_wr){ .next = i + 1 < count ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1,
			.opcode = opcode, .send_flags = IBV_SEND_SIGNALED };
		if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr[i].wr.atomic.remote_addr = (uintptr_t)memory + LARGEST;
			wr[i].wr.atomic.compare_add = 1;
			wr[i].wr.atomic.rkey = mr->rkey;
		} else {
			wr[i].wr.rdma.remote_addr = (uintptr_t)memory + LARGEST;
			wr[i].wr.rdma.rkey = mr->rkey;
		}
	}
	if (ibv_post_send(near, wr, &bad)) die("ibv_post_send");
}

static void by_event(void)
{
	struct ibv_cq *cq;
	void *user;

	if (ibv_req_notify_cq(receives, 0)) die("ibv_req_notify_cq");
	receive(1, 8);
	post(IBV_WR_SEND, 1, 8);
	if (ibv_get_cq_event(channel, &cq, &user)) die("ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
	take(receives, 1);
	take(sends, 1);
}

static void round_of(const char *what, enum ibv_wr_opcode opcode, int count, uint32_t length)
{
	struct ibv_wc wc;

	if (!strcmp(what, "poll")) {
		if (ibv_poll_cq(sends, 1, &wc)) die("an empty queue has something");
	} else if (!strcmp(what, "post_recv")) {
		receive(count, length);
	} else if (!strcmp(what, "event")) {
		by_event();
	} else {
		if (opcode == IBV_WR_SEND) receive(count, length);
		post(opcode, count, length);
		if (opcode == IBV_WR_SEND) take(receives, count);
		take(sends, count);
	}
}

static void measure(const char *what, enum ibv_wr_opcode opcode, int count, uint32_t length, int rounds)
{
	char name[64];

	for (int i = 0; i < WARM; i++) round_of(what, opcode, count, length);
	CALLGRIND_ZERO_STATS;
	for (int i = 0; i < rounds; i++) round_of(what, opcode, count, length);
	snprintf(name, sizeof name, "%s-%u-%d %d", what, length, count, count * rounds);
	CALLGRIND_DUMP_STATS_AT(name);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; enum ibv_wr_opcode opcode; uint32_t length; } verbs[] = {
		{ "send", IBV_WR_SEND, 8 },
		{ "send", IBV_WR_SEND, LARGEST },
		{ "write", IBV_WR_RDMA_WRITE, 8 },
		{ "read", IBV_WR_RDMA_READ, 8 },
		{ "atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, 8 },
	};
	int rounds = argc > 1 ? atoi(argv[1]) : 200, devices;
	struct ibv_device **list = ibv_get_device_list(&devices);

	if (!list || !devices || !(context = ibv_open_device(list[0]))) die("there is no device");
	if (ibv_query_gid(context, 1, 0, &gid)) die("ibv_query_gid");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	sends = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	receives = ibv_create_cq(context, DEPTH, NULL, channel, 0);
	near = make(pd, sends, 1);
	far = make(pd, receives, DEPTH + WARM + rounds);
	join(near, far->qp_num);
	join(far, near->qp_num);
	mr = ibv_reg_mr(pd, memory, sizeof memory, 15);
	if (!pd || !mr) die("ibv_reg_mr");
	measure("poll", 0, 1, 0, 10 * rounds);
	for (unsigned i = 0; i < sizeof verbs / sizeof *verbs; i++) {
		measure(verbs[i].name, verbs[i].opcode, 1, verbs[i].length, rounds);
		measure(verbs[i].name, verbs[i].opcode, LIST, verbs[i].length, rounds / LIST + 1);
	}
	measure("event", IBV_WR_SEND, 1, 8, rounds);
	measure("post_recv", 0, 1, 8, rounds);
	/* Start-up and end are nobody's case. */
	_exit(0);
}
