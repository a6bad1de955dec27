/* Atomics concurrent with the program's own CPU, atomic writes that are never torn, and flushes. */
#include "pair.h"

#include <pthread.h>

static struct end one, two;
static volatile int stop;

static void permit_flushes(void)
{
	/* The access flags of a connected queue pair may change. */
	struct ibv_qp_attr attr = {
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | 0x300,
	};

	NEED(!ibv_modify_qp(two.qp, &attr, IBV_QP_ACCESS_FLAGS));
}

static void reconnect(void)
{
	reconnect_ends(&one, &two);
	permit_flushes();
}

enum { ADDS = 20000, DEEP = 8 };

static void *add_locally(void *word)
{
	for (int i = 0; i < ADDS; i++)
		__atomic_fetch_add((uint64_t *)word, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* A thread adds to a word at the same time as the peer: the sum is exact, and no result occurs twice. */
static void the_sum_is_exact(void)
{
	uint64_t *word = (uint64_t *)(two.memory + 64), last = 0;
	struct ibv_sge sge = { .length = 8, .lkey = one.mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED,
		.wr.atomic = { .remote_addr = (uintptr_t)word, .compare_add = 1, .rkey = two.mr->rkey },
	}, *bad;
	pthread_t thread;
	int posted = 0;

	*word = 0;
	NEED(!pthread_create(&thread, NULL, add_locally, word));
	for (int done = 0; done < ADDS / 10; done++) {
		for (; posted < ADDS / 10 && posted < done + DEEP; posted++) {
			sge.addr = (uintptr_t)one.memory + 8 * (posted % DEEP);
			NEED(ibv_post_send(one.qp, &wr, &bad) == 0);
		}
		NEED(next_wc(&one).status == IBV_WC_SUCCESS);
		uint64_t was = ((uint64_t *)one.memory)[done % DEEP];

		CHECK(done == 0 || was > last);
		last = was;
	}
	pthread_join(thread, NULL);
	CHECK(*word == ADDS + ADDS / 10);
}

static void *look(void *word)
{
	while (!stop) {
		uint64_t seen = __atomic_load_n((uint64_t *)word, __ATOMIC_ACQUIRE);

		CHECK((seen & 0xffffffff) == seen >> 32);
	}
	return NULL;
}

static void an_atomic_write_is_never_torn(void)
{
	uint64_t *word = (uint64_t *)(two.memory + 4088);
	pthread_t thread;

	*word = 0;
	NEED(!pthread_create(&thread, NULL, look, word));
	for (uint64_t i = 1; i <= 2000; i++) {
		uint64_t value = i << 32 | i;

		ibv_wr_start(one.qpx);
		one.qpx->wr_id = i;
		one.qpx->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_atomic_write(one.qpx, two.mr->rkey, (uintptr_t)word, &value);
		/* the call has copied it */
		memset(&value, 0xee, 3);
		NEED(ibv_wr_complete(one.qpx) == 0);
		struct ibv_wc wc = next_wc(&one);

		NEED(wc.status == IBV_WC_SUCCESS);
		CHECK(wc.opcode == IBV_WC_ATOMIC_WRITE && wc.wr_id == i && *word == (i << 32 | i));
	}
	stop = 1;
	pthread_join(thread, NULL);
}

static void an_atomic_write_from_registered_memory(void)
{
	memset(one.memory, 0x5a, 8);
	CHECK(post(&one, IBV_WR_ATOMIC_WRITE, 1, 0, 8, &two, 256, IBV_SEND_SIGNALED) == 0);
	CHECK(next_wc(&one).status == IBV_WC_SUCCESS && two.memory[263] == 0x5a);
	CHECK(post(&one, IBV_WR_ATOMIC_WRITE, 1, 0, 4, &two, 256, IBV_SEND_SIGNALED) == EINVAL);
	CHECK(post(&one, IBV_WR_ATOMIC_WRITE, 1, 0, 8, &two, 260, IBV_SEND_SIGNALED) == EINVAL);
	/* IBV_WR_FLUSH: this structure has no member for the kind of flush */
	CHECK(post(&one, 14, 1, 0, 8, &two, 256, IBV_SEND_SIGNALED) == EINVAL);
	/* the header of Debian 12 lacks its name, but the structure is longer */
	ibv_wr_start(one.qpx);
	ibv_wr_atomic_write(one.qpx, two.mr->rkey, (uintptr_t)two.memory, NULL);
	CHECK(ibv_wr_complete(one.qpx) == EFAULT);
}

typedef void flush_function(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);

static int post_flush(uint32_t rkey, size_t length, uint8_t type, uint8_t level)
{
	/* behind wr_atomic_write, for headers that lack it */
	flush_function *flush = ((flush_function **)&one.qpx->wr_atomic_write)[1];

	ibv_wr_start(one.qpx);
	one.qpx->wr_flags = IBV_SEND_SIGNALED;
	flush(one.qpx, rkey, (uintptr_t)two.memory, length, type, level);
	return ibv_wr_complete(one.qpx);
}

static void flushes(void)
{
	enum { GLOBAL = 1, PERSISTENT = 2, RANGE = 0, REGION = 1 };
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | 0x100;
	struct ibv_mr *mr = ibv_reg_mr(pd, two.memory, ROOM, access);

	NEED(mr);
	/* this is no persistent memory */
	CHECK_NULL(ibv_reg_mr(pd, two.memory, ROOM, access | 0x200), EINVAL);
	CHECK(post_flush(mr->rkey, 4096, GLOBAL, RANGE) == 0);
	struct ibv_wc wc = next_wc(&one);

	CHECK(wc.status == IBV_WC_SUCCESS && (int)wc.opcode == 8);
	CHECK(post_flush(mr->rkey, 0, GLOBAL, REGION) == 0 && next_wc(&one).status == IBV_WC_SUCCESS);
	CHECK(post_flush(mr->rkey, 0, 0, RANGE) == EINVAL);
	CHECK(post_flush(mr->rkey, 0, 4, RANGE) == EINVAL);
	CHECK(post_flush(mr->rkey, 0, GLOBAL, 2) == EINVAL);
	CHECK(post_flush(mr->rkey, (size_t)1 << 32, GLOBAL, RANGE) == EINVAL);
	CHECK(post_flush(mr->rkey, 64, PERSISTENT, RANGE) == 0 && next_wc(&one).status == IBV_WC_REM_ACCESS_ERR);
	reconnect();
	CHECK(post_flush(two.mr->rkey, 64, GLOBAL, RANGE) == 0 && next_wc(&one).status == IBV_WC_REM_ACCESS_ERR);
	reconnect();
	CHECK(post_flush(mr->rkey, ROOM + 1, GLOBAL, RANGE) == 0 && next_wc(&one).status == IBV_WC_REM_ACCESS_ERR);
	reconnect();
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	CHECK(ibv_modify_qp(two.qp, &attr, IBV_QP_ACCESS_FLAGS) == 0);
	CHECK(post_flush(mr->rkey, 64, GLOBAL, RANGE) == 0 && next_wc(&one).status == IBV_WC_REM_INV_REQ_ERR);
	reconnect();
	CHECK(ibv_dereg_mr(mr) == 0);
}

int main(void)
{
	open_pd();
	struct ibv_device_attr_ex attr;

	CHECK(ibv_query_device_ex(context, NULL, &attr) == 0);
	CHECK(attr.device_cap_flags_ex >> 38 & 1 && attr.device_cap_flags_ex >> 40 & 1);
	make_pair(&one, &two);
	permit_flushes();
	the_sum_is_exact();
	an_atomic_write_is_never_torn();
	an_atomic_write_from_registered_memory();
	flushes();
	return close_pair(&one, &two);
}
