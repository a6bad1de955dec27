/* On-demand paging: registration of unmapped memory, accesses of peers to it, prefetching. */
#include "pair.h"

#include <sys/mman.h>

static struct end one, two;

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
	     IBV_ACCESS_ON_DEMAND };

/* The status of one operation of `one` on eight bytes at `addr` by `rkey`. */
static enum ibv_wc_status touch(enum ibv_wr_opcode opcode, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)one.memory, .length = 8, .lkey = one.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	return next_wc(&one).status;
}

static const enum ibv_wr_opcode touches[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };

static void refused_and_alive(uint64_t addr, uint32_t rkey)
{
	for (int i = 0; i < 3; i++) {
		CHECK(touch(touches[i], addr, rkey) == IBV_WC_REM_ACCESS_ERR);
		reconnect_ends(&one, &two);
	}
}

static void accepted(uint64_t addr, uint32_t rkey)
{
	for (int i = 0; i < 3; i++)
		CHECK(touch(touches[i], addr, rkey) == IBV_WC_SUCCESS);
}

/* A receive into unmapped memory: the sender gets a NAK, and the receiver's completion has the error. */
static void no_place_to_receive(uint64_t addr, uint32_t lkey)
{
	struct ibv_sge sge = { .addr = addr, .length = 8, .lkey = lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(two.qp, &recv, &bad) == 0);
	CHECK(touch(IBV_WR_SEND, 0, 0) == IBV_WC_REM_OP_ERR);
	CHECK(next_wc(&two).status == IBV_WC_LOC_PROT_ERR);
	reconnect_ends(&one, &two);
	/* and to send from there */
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_wr;

	CHECK(ibv_post_send(two.qp, &wr, &bad_wr) == 0 && next_wc(&two).status == IBV_WC_LOC_PROT_ERR);
	reconnect_ends(&one, &two);
}

static void one_tebibyte_of_nothing(void)
{
	size_t size = (size_t)1 << 40;
	char *space = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	NEED(space != MAP_FAILED);
	/* without on-demand paging it is refused */
	CHECK_NULL(ibv_reg_mr(pd, space, size, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	struct ibv_mr *mr = ibv_reg_mr(pd, space, size, ALL);

	NEED(mr);
	CHECK(mr->length == size);
	uint64_t at = (uintptr_t)space;

	refused_and_alive(at, mr->rkey);
	refused_and_alive(at + size / 2, mr->rkey);
	refused_and_alive(at + size - 8, mr->rkey);
	refused_and_alive(at + size, mr->rkey);
	no_place_to_receive(at + 4096, mr->lkey);
	/* pages that are mapped later are accessible */
	CHECK(mprotect(space + size / 2, 4096, PROT_READ | PROT_WRITE) == 0);
	accepted(at + size / 2, mr->rkey);
	accepted(at + size / 2 + 4088, mr->rkey);
	refused_and_alive(at + size / 2 - 8, mr->rkey);
	refused_and_alive(at + size / 2 + 4096, mr->rkey);
	CHECK(munmap(space, size) == 0);
	refused_and_alive(at + size / 2, mr->rkey);
	CHECK(ibv_dereg_mr(mr) == 0);
}

static void all_there_is(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, NULL, SIZE_MAX, ALL);

	NEED(mr);
	CHECK(mr->addr == NULL && mr->length == SIZE_MAX);
	accepted((uintptr_t)two.memory + 64, mr->rkey);
	/* NULL, below the program, between the halves, the kernel's half, the end */
	static const uint64_t nowhere[] = { 0, 8, 0x1000, (uint64_t)1 << 46, 0x800000000000, (uint64_t)1 << 63, 0xffff800000000000, -(uint64_t)16 };

	for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++)
		refused_and_alive(nowhere[i], mr->rkey);
	refused_and_alive(-(uint64_t)8, mr->rkey);
	no_place_to_receive(8, mr->lkey);
	/* a page that is mapped and unmapped */
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	NEED(page != MAP_FAILED);
	accepted((uintptr_t)page, mr->rkey);
	CHECK(mprotect(page, 4096, PROT_READ) == 0);
	CHECK(touch(IBV_WR_RDMA_READ, (uintptr_t)page, mr->rkey) == IBV_WC_SUCCESS);
	CHECK(touch(IBV_WR_RDMA_WRITE, (uintptr_t)page, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);
	CHECK(munmap(page, 4096) == 0);
	refused_and_alive((uintptr_t)page, mr->rkey);
	CHECK(ibv_dereg_mr(mr) == 0);
	/* not without the access flag */
	CHECK_NULL(ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	CHECK_NULL(ibv_reg_mr_iova(pd, NULL, SIZE_MAX, 4096, ALL), EINVAL);
}

static int advise(enum ib_uverbs_advise_mr_advice advice, uint64_t addr, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };

	return ibv_advise_mr(pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1);
}

static void advice(void)
{
	size_t size = 64 * 4096;
	char *space = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char there[64];

	NEED(space != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(pd, space, size, ALL), *all = ibv_reg_mr(pd, NULL, SIZE_MAX, ALL);
	struct ibv_mr *readable = ibv_reg_mr(pd, space, size, IBV_ACCESS_ON_DEMAND);
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_mr *foreign = ibv_reg_mr(other, space, size, ALL);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	uint64_t at = (uintptr_t)space;

	NEED(mr && all && readable && foreign && mw);
	enum ib_uverbs_advise_mr_advice READ = IBV_ADVISE_MR_ADVICE_PREFETCH, WRITE = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
					THERE = IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;

	CHECK(advise(THERE, at, size, mr->lkey) == 0);
	CHECK(mincore(space, size, there) == 0 && !(there[0] & 1) && !(there[63] & 1));
	CHECK(advise(WRITE, at + 5, 1, mr->lkey) == 0);
	CHECK(mincore(space, size, there) == 0 && there[0] & 1 && !(there[1] & 1));
	CHECK(advise(WRITE, at + 4096, size - 4096, all->lkey) == 0);
	CHECK(mincore(space, size, there) == 0 && there[1] & 1 && there[63] & 1);
	CHECK(advise(READ, at, size, readable->lkey) == 0);
	CHECK(advise(READ, at, 0, mr->lkey) == 0);

	CHECK(advise(WRITE, at, 8, readable->lkey) == EPERM);
	CHECK(advise(READ, at, 8, foreign->lkey) == EPERM);
	CHECK(advise(READ, at, 8, 0) == ENOENT);
	CHECK(advise(READ, at, 8, ~mr->lkey) == ENOENT);
	/* a window that is not bound has no key */
	CHECK(advise(READ, at, 8, mw->rkey) == ENOENT);
	CHECK(advise(READ, (uintptr_t)two.memory, 8, two.mr->lkey) == EINVAL);
	CHECK(advise(READ, at, size + 1, mr->lkey) == EFAULT);
	CHECK(advise(READ, at - 1, 2, mr->lkey) == EFAULT);
	CHECK(advise(READ, 8, 8, all->lkey) == EFAULT);
	CHECK(advise(WRITE, -(uint64_t)16, 8, all->lkey) == EFAULT);
	CHECK(advise(9, at, 8, mr->lkey) == EOPNOTSUPP);
	struct ibv_sge sge = { .addr = at, .length = 8, .lkey = mr->lkey };

	CHECK(ibv_advise_mr(pd, READ, 2, &sge, 1) == EINVAL);
	CHECK(ibv_advise_mr(pd, READ, 0, NULL, 1) == EINVAL);
	CHECK(ibv_advise_mr(pd, READ, 0, &sge, 1) == 0);
	CHECK(munmap(space + 4096, 4096) == 0);
	CHECK(advise(READ, at, size, mr->lkey) == EFAULT);

	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(all) == 0 && ibv_dereg_mr(readable) == 0 && ibv_dereg_mr(foreign) == 0);
	CHECK(advise(READ, at, 8, mr->lkey) == ENOENT);
	CHECK(ibv_dealloc_mw(mw) == 0 && ibv_dealloc_pd(other) == 0);
	munmap(space, size);
}

int main(void)
{
	open_pd();
	struct ibv_device_attr_ex attr;

	CHECK(ibv_query_device_ex(context, NULL, &attr) == 0);
	CHECK(attr.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	CHECK((attr.odp_caps.per_transport_caps.rc_odp_caps & 0x3f) == 0x3f);
	CHECK(attr.odp_caps.per_transport_caps.ud_odp_caps == (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV));
	make_pair(&one, &two);
	one_tebibyte_of_nothing();
	all_there_is();
	advice();
	/* all the same */
	CHECK(post(&one, IBV_WR_RDMA_WRITE, 1, 0, 8, &two, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(next_wc(&one).status == IBV_WC_SUCCESS);
	return close_pair(&one, &two);
}
