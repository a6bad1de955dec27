/* Posting and polling allocate nothing on the calling thread. */
#include "pair.h"

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static __thread int counting, allocations;

void *malloc(size_t size)
{
	allocations += counting;
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	allocations += counting;
	return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
	allocations += counting;
	return __libc_realloc(old, size);
}

int posix_memalign(void **to, size_t align, size_t size)
{
	allocations += counting;
	*to = __libc_memalign(align, size);
	return *to ? 0 : ENOMEM;
}

static struct end a, b;

static void round_trip(int i)
{
	struct ibv_poll_cq_attr poll = {};

	post_receive(&b, i, 0, 4096);
	CHECK(post(&a, IBV_WR_SEND, i, 0, 4096, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(next_wc(&b).status == IBV_WC_SUCCESS);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	CHECK(post(&a, IBV_WR_SEND_WITH_IMM, i, 0, 64, &b, 0, IBV_SEND_SIGNALED | IBV_SEND_INLINE) == 0);
	post_receive(&b, i, 0, 4096);
	CHECK(next_wc(&b).status == IBV_WC_SUCCESS);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	CHECK(post(&a, IBV_WR_RDMA_WRITE, i, 0, ROOM, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	CHECK(post(&a, IBV_WR_RDMA_READ, i, 0, ROOM, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);

	ibv_wr_start(a.qpx);
	a.qpx->wr_id = i;
	a.qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(a.qpx, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_sge(a.qpx, a.mr->lkey, (uintptr_t)a.memory, 512);
	CHECK(ibv_wr_complete(a.qpx) == 0);
	while (ibv_start_poll(a.cq_ex, &poll) == ENOENT)
		;
	CHECK(a.cq_ex->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(a.cq_ex) == IBV_WC_RDMA_WRITE);
	ibv_end_poll(a.cq_ex);
}

int main(void)
{
	context = open_device();
	counting = 1;
	pd = ibv_alloc_pd(context);
	counting = 0;
	NEED(pd);
	/* The counter sees the library's allocations. */
	CHECK(allocations > 0);
	allocations = 0;
	make_pair(&a, &b);
	/* The first rounds allocate buffers that later calls reuse. */
	for (int i = 0; i < 300; i++) {
		counting = i >= 100;
		round_trip(i);
		counting = 0;
	}
	if (allocations) {
		fprintf(stderr, "%d allocations in 200 rounds\n", allocations);
		failures++;
	}
	return close_pair(&a, &b);
}
