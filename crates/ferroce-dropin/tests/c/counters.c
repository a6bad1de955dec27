/* Completion counters. The declarations are of rdma-core 65, which is newer than most headers. */
#include "pair.h"

#include <dlfcn.h>
#include <sys/wait.h>

struct caps {
	uint64_t max_value;
	uint32_t max_counters, ops;
};

struct counter {
	struct ibv_context *context;
	uint32_t handle;
};

struct counter_attr {
	uint32_t comp_mask, type, flags;
};

struct attach_attr {
	uint32_t comp_mask, ops;
};

enum { OP_SEND = 1, OP_RECV = 2, OP_READ = 4, REMOTE_READ = 8, OP_WRITE = 16, REMOTE_WRITE = 32 };

static int (*query_caps)(struct ibv_context *context, struct caps *caps, size_t size);
static struct counter *(*create)(struct ibv_context *context, struct counter_attr *attr);
static int (*destroy)(struct counter *counter);
static int (*set_done)(struct counter *counter, uint64_t value);
static int (*set_failed)(struct counter *counter, uint64_t value);
static int (*add_done)(struct counter *counter, uint64_t amount);
static int (*add_failed)(struct counter *counter, uint64_t amount);
static int (*read_done)(struct counter *counter, uint64_t *value);
static int (*read_failed)(struct counter *counter, uint64_t *value);
static int (*attach)(struct ibv_qp *qp, struct counter *counter, struct attach_attr *attr);

static void find_calls(void)
{
	const struct {
		const char *name;
		void *call;
	} calls[] = {
		{ "_ibv_query_comp_cntr_caps", &query_caps }, { "ibv_create_comp_cntr", &create },
		{ "ibv_destroy_comp_cntr", &destroy },	      { "ibv_set_comp_cntr", &set_done },
		{ "ibv_set_err_comp_cntr", &set_failed },     { "ibv_inc_comp_cntr", &add_done },
		{ "ibv_inc_err_comp_cntr", &add_failed },     { "ibv_read_comp_cntr", &read_done },
		{ "ibv_read_err_comp_cntr", &read_failed },   { "ibv_qp_attach_comp_cntr", &attach },
	};

	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		*(void **)calls[i].call = dlvsym(RTLD_DEFAULT, calls[i].name, "IBVERBS_1.18");
		NEED(*(void **)calls[i].call);
	}
}

static struct counter *make(uint32_t type)
{
	struct counter_attr attr = { .type = type };
	struct counter *counter = create(context, &attr);

	NEED(counter && counter->context == context);
	return counter;
}

static void attach_to(struct end *end, struct counter *counter, uint32_t ops)
{
	struct attach_attr attr = { .ops = ops };

	CHECK(attach(end->qp, counter, &attr) == 0);
}

static uint64_t done(struct counter *counter)
{
	uint64_t value = 12345;

	CHECK(read_done(counter, &value) == 0);
	return value;
}

static uint64_t failed(struct counter *counter)
{
	uint64_t value = 12345;

	CHECK(read_failed(counter, &value) == 0);
	return value;
}

/* Nothing but this call drives the two queue pairs. */
static void wait_for(struct counter *counter, uint64_t value)
{
	alarm(20);
	while (done(counter) < value)
		;
	alarm(0);
	CHECK(done(counter) == value);
}

static void wrong_callers(void)
{
	struct counter_attr attr = {};
	struct attach_attr ops = { .ops = OP_SEND };
	struct end end = make_end();
	struct ibv_context *other = open_device();
	struct counter *foreign = create(other, &attr), *counter = make(0), *second = make(1);
	uint64_t value;
	struct caps caps;

	NEED(foreign);
	CHECK(query_caps(NULL, &caps, sizeof(caps)) == EINVAL);
	CHECK(query_caps(context, NULL, sizeof(caps)) == EINVAL);
	CHECK_NULL(create(NULL, &attr), EINVAL);
	CHECK_NULL(create(context, NULL), EINVAL);
	CHECK_NULL(create(context, &(struct counter_attr){ .comp_mask = 1 }), EOPNOTSUPP);
	CHECK_NULL(create(context, &(struct counter_attr){ .type = 2 }), EOPNOTSUPP);
	CHECK_NULL(create(context, &(struct counter_attr){ .flags = 1 }), EOPNOTSUPP);
	CHECK(set_done(NULL, 1) == EINVAL && set_failed(NULL, 1) == EINVAL);
	CHECK(add_done(NULL, 1) == EINVAL && add_failed(NULL, 1) == EINVAL);
	CHECK(read_done(NULL, &value) == EINVAL && read_failed(NULL, &value) == EINVAL);
	CHECK(read_done(counter, NULL) == EINVAL && read_failed(counter, NULL) == EINVAL);
	CHECK(destroy(NULL) == EINVAL);
	CHECK(attach(NULL, counter, &ops) == EINVAL && attach(end.qp, NULL, &ops) == EINVAL);
	CHECK(attach(end.qp, counter, NULL) == EINVAL && attach(end.qp, foreign, &ops) == EINVAL);
	CHECK(attach(end.qp, counter, &(struct attach_attr){}) == EINVAL);
	CHECK(attach(end.qp, counter, &(struct attach_attr){ .comp_mask = 1, .ops = OP_SEND }) == EOPNOTSUPP);
	CHECK(attach(end.qp, counter, &(struct attach_attr){ .ops = OP_SEND | 64 }) == EOPNOTSUPP);
	CHECK(attach(end.qp, counter, &ops) == 0);
	CHECK(attach(end.qp, second, &(struct attach_attr){ .ops = OP_RECV | OP_SEND }) == EBUSY);
	CHECK(destroy(counter) == EBUSY);
	to_rts(&end, end.qp->qp_num);
	CHECK(attach(end.qp, second, &(struct attach_attr){ .ops = OP_RECV }) == EINVAL);
	free_end(&end);
	CHECK(destroy(counter) == 0 && destroy(counter) == EINVAL && read_done(counter, &value) == EINVAL);
	CHECK(destroy(second) == 0 && destroy(foreign) == 0);
	CHECK(ibv_close_device(other) == 0);
}

static void values(void)
{
	struct { struct caps known; uint64_t later; } caps = { .later = 7 };
	struct counter *counter = make(0);

	CHECK(query_caps(context, &caps.known, sizeof(caps)) == 0);
	CHECK(caps.known.max_value == UINT64_MAX && caps.known.max_counters >= 1024);
	CHECK(caps.known.ops == 0x3f && caps.later == 0);
	CHECK(query_caps(context, &caps.known, 8) == 0);
	CHECK(done(counter) == 0 && failed(counter) == 0);
	CHECK(set_done(counter, UINT64_MAX) == 0 && set_failed(counter, 5) == 0);
	CHECK(done(counter) == UINT64_MAX && failed(counter) == 5);
	CHECK(add_done(counter, 3) == 0 && add_failed(counter, UINT64_MAX) == 0);
	CHECK(done(counter) == 2 && failed(counter) == 4);
	CHECK(destroy(counter) == 0);
}

static void limit(void)
{
	struct counter_attr attr = {};
	struct caps caps;

	CHECK(query_caps(context, &caps, sizeof(caps)) == 0);
	struct counter **all = calloc(caps.max_counters, sizeof(*all));

	NEED(all);
	for (uint32_t i = 0; i < caps.max_counters; i++)
		NEED(all[i] = create(context, &attr));
	CHECK_NULL(create(context, &attr), ENOMEM);
	for (uint32_t i = 0; i < caps.max_counters; i++)
		CHECK(destroy(all[i]) == 0);
	free(all);
	CHECK(destroy(make(0)) == 0);
}

/* One process, all operations, with and without signals; no completion queue is polled. */
static void traffic(void)
{
	struct end a = make_end(), b = make_end();
	struct counter *requests = make(0), *octets = make(1), *incoming = make(0), *received = make(0);

	attach_to(&a, requests, OP_SEND | OP_READ);
	attach_to(&a, octets, OP_WRITE);
	attach_to(&b, incoming, REMOTE_READ | REMOTE_WRITE);
	attach_to(&b, received, OP_RECV);
	connect_ends(&a, &b);
	for (int i = 0; i < 4; i++)
		post_receive(&b, i, 0, 100);
	strcpy(a.memory, "counted");
	CHECK(post(&a, IBV_WR_SEND, 1, 0, 8, &b, 0, 0) == 0);
	wait_for(requests, 1);
	wait_for(received, 1);
	CHECK(!strcmp(b.memory, "counted"));
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 2, 0, 5000, &b, 8192, 0) == 0);
	CHECK(post(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 3, 0, 20, &b, 8192, IBV_SEND_SIGNALED) == 0);
	wait_for(octets, 5020);
	wait_for(incoming, 2);
	wait_for(received, 2);
	CHECK(post(&a, IBV_WR_RDMA_READ, 4, 0, 64, &b, 8192, IBV_SEND_SIGNALED) == 0);
	wait_for(requests, 2);
	wait_for(incoming, 3);
	/* The completions of signaled requests are there as ever. */
	CHECK(next_wc(&a).wr_id == 3 && next_wc(&a).wr_id == 4);
	CHECK(next_wc(&b).wr_id == 0 && next_wc(&b).wr_id == 1);
	/* A wrong key is one error at either end, and flushes the peer's receives. */
	b.mr->rkey ^= 0x55;
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 5, 0, 8, &b, 0, 0) == 0);
	b.mr->rkey ^= 0x55;
	CHECK(next_wc(&a).status == IBV_WC_REM_ACCESS_ERR);
	CHECK(failed(octets) == 1 && failed(incoming) == 1 && done(octets) == 5020 && done(incoming) == 3);
	CHECK(next_wc(&b).status == IBV_WC_WR_FLUSH_ERR && next_wc(&b).status == IBV_WC_WR_FLUSH_ERR);
	CHECK(failed(received) == 2 && done(received) == 2 && failed(requests) == 0);
	free_end(&a);
	free_end(&b);
	CHECK(destroy(requests) == 0 && destroy(octets) == 0 && destroy(incoming) == 0 && destroy(received) == 0);
}

/* One counter of many queue pairs, and the peer's operations of another process: it must not copy directly. */
static void two_processes(void)
{
	int pair[2];

	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t child = fork();

	NEED(child >= 0);
	open_pd();
	struct end end = make_end();
	int talk = pair[child == 0];
	struct { uint32_t qpn, rkey; uint64_t addr; } here = { end.qp->qp_num, end.mr->rkey, (uintptr_t)end.memory }, there;
	struct counter *counter = make(1);

	attach_to(&end, counter, child ? OP_WRITE | OP_READ : REMOTE_WRITE | REMOTE_READ);
	NEED(write(talk, &here, sizeof(here)) == sizeof(here) && read(talk, &there, sizeof(there)) == sizeof(there));
	to_rts(&end, there.qpn);
	NEED(write(talk, "", 1) == 1 && read(talk, (char[1]){}, 1) == 1);
	if (child) {
		struct ibv_mr mr = { .rkey = there.rkey };
		struct end peer = { .memory = (char *)(uintptr_t)there.addr, .mr = &mr };

		for (int i = 0; i < 10; i++) {
			CHECK(post(&end, IBV_WR_RDMA_WRITE, i, 0, 30000, &peer, 0, 0) == 0);
			CHECK(post(&end, IBV_WR_RDMA_READ, i, 0, 1000, &peer, 0, 0) == 0);
			wait_for(counter, 31000 * (i + 1));
		}
	} else {
		wait_for(counter, 310000);
	}
	NEED(write(talk, "", 1) == 1 && read(talk, (char[1]){}, 1) == 1);
	free_end(&end);
	CHECK(destroy(counter) == 0);
	if (!child)
		exit(close_pd());
	int status;

	CHECK(close_pd() == 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
	find_calls();
	raise_lo();
	two_processes();
	open_pd();
	wrong_callers();
	values();
	limit();
	traffic();
	return close_pd();
}
