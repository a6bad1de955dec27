/* Reregistration and null regions: results of the calls, and of work requests. */
#include "pair.h"

#include <sys/mman.h>

static struct end one, two;

/* Returns the status of one RDMA WRITE of eight bytes to `two`. */
static enum ibv_wc_status write_to_two(void)
{
	CHECK(post(&one, IBV_WR_RDMA_WRITE, 1, 0, 8, &two, 0, IBV_SEND_SIGNALED) == 0);
	return next_wc(&one).status;
}

static void callers_get_negative_codes_and_keep_their_region(void)
{
	struct ibv_mr *mr = two.mr, before = *mr;
	int translation = IBV_REREG_MR_CHANGE_TRANSLATION, access = IBV_REREG_MR_CHANGE_ACCESS;
	char *readonly = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	NEED(readonly != MAP_FAILED);
	CHECK(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, translation, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, translation, NULL, one.memory, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 1) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, access, NULL, NULL, 0, 1 << 15) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, access, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, access, NULL, NULL, 0, IBV_ACCESS_ON_DEMAND) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, translation, NULL, readonly, 4096, 0) == IBV_REREG_MR_ERR_INPUT && errno == EFAULT);
	CHECK(memcmp(mr, &before, sizeof before) == 0);
	CHECK(write_to_two() == IBV_WC_SUCCESS);
	munmap(readonly, 4096);
}

static void what_is_changed_is_seen_by_peers(void)
{
	struct ibv_pd *other = ibv_alloc_pd(context);
	char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	uint32_t rkey = two.mr->rkey;

	NEED(other && memory != MAP_FAILED);
	CHECK(ibv_rereg_mr(two.mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0) == 0);
	CHECK(two.mr->pd == other && two.mr->rkey == rkey && ibv_dealloc_pd(other) == EBUSY);
	CHECK(write_to_two() == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);
	CHECK(ibv_rereg_mr(two.mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0) == 0);
	CHECK(ibv_dealloc_pd(other) == 0);
	CHECK(write_to_two() == IBV_WC_SUCCESS);

	CHECK(ibv_rereg_mr(two.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
	CHECK(write_to_two() == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);

	/* the last two together */
	char *was = two.memory;

	CHECK(ibv_rereg_mr(two.mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 4096, all) == 0);
	CHECK(two.mr->addr == memory && two.mr->length == 4096);
	memset(one.memory, 7, 8);
	two.memory = memory;
	CHECK(write_to_two() == IBV_WC_SUCCESS);
	CHECK(memory[7] == 7 && was[7] != 7);
	two.memory = was;
	CHECK(write_to_two() == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);
	CHECK(ibv_rereg_mr(two.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, was, ROOM, 0) == 0);
	CHECK(write_to_two() == IBV_WC_SUCCESS);
	munmap(memory, 4096);
}

/* The receiver discards the middle of a message, and a sender sends zeros without a buffer. */
static void a_null_region_discards_and_reads_as_zeros(void)
{
	struct ibv_mr *null = ibv_alloc_null_mr(pd);

	NEED(null);
	CHECK(null->pd == pd && null->lkey && null->rkey == 0 && null->length == SIZE_MAX);
	memset(one.memory, 5, 24);
	memset(two.memory, 1, 24);
	struct ibv_sge receive[] = {
		{ .addr = (uintptr_t)two.memory, .length = 8, .lkey = two.mr->lkey },
		{ .addr = 0, .length = 8, .lkey = null->lkey },
		{ .addr = (uintptr_t)two.memory + 8, .length = 8, .lkey = two.mr->lkey },
	};
	struct ibv_recv_wr recv = { .wr_id = 2, .sg_list = receive, .num_sge = 3 }, *bad_recv;

	CHECK(ibv_post_recv(two.qp, &recv, &bad_recv) == 0);
	struct ibv_sge send[] = {
		{ .addr = (uintptr_t)one.memory, .length = 16, .lkey = one.mr->lkey },
		{ .addr = 12345, .length = 8, .lkey = null->lkey },
	};
	struct ibv_send_wr wr = { .sg_list = send, .num_sge = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	CHECK(next_wc(&one).status == IBV_WC_SUCCESS);
	struct ibv_wc wc = next_wc(&two);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 24);
	for (int i = 0; i < 8; i++)
		CHECK(two.memory[i] == 5 && two.memory[8 + i] == 0 && two.memory[16 + i] == 1);
	CHECK(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dereg_mr(null) == 0);
	CHECK(ibv_dereg_mr(null) == EINVAL);
}

/* Memory shared with other processes: writes through the file are visible to a peer, and the reverse. */
static void a_file_is_registered(void)
{
	int fd = memfd_create("shared", MFD_CLOEXEC), access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	int pipes[2];
	char byte = 0;

	NEED(fd >= 0 && ftruncate(fd, 16384) == 0 && pipe(pipes) == 0);
	CHECK_NULL(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, access), EBADF);
	CHECK_NULL(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 999, access), EBADF);
	CHECK_NULL(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, pipes[0], access), EINVAL);
	CHECK_NULL(ibv_reg_dmabuf_mr(pd, 0, 16385, 0, fd, access), EINVAL);
	CHECK_NULL(ibv_reg_dmabuf_mr(pd, 16384, 1, 0, fd, access), EINVAL);
	CHECK_NULL(ibv_reg_dmabuf_mr(pd, -(uint64_t)4096, 8192, 0, fd, access), EINVAL);
	CHECK_NULL(ibv_reg_dmabuf_mr(pd, 0, 0, 0, fd, access), EINVAL);
	CHECK_NULL(ibv_reg_dmabuf_mr(pd, 100, 4096, 200, fd, access), EINVAL);
	CHECK_NULL(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, fd, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	CHECK_NULL(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, fd, IBV_ACCESS_MW_BIND), EOPNOTSUPP);
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 5000, 8000, 0x10000 + 5000 % 4096, fd, access);

	NEED(mr);
	CHECK(mr->length == 8000 && mr->pd == pd);
	/* a peer writes by the iova, only to the mapped part */
	struct ibv_sge sge = { .addr = (uintptr_t)one.memory, .length = 8, .lkey = one.mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = 0x10000 + 5000 % 4096 + 7992, .rkey = mr->rkey },
	}, *bad;

	memset(one.memory, 0x66, 8);
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0 && next_wc(&one).status == IBV_WC_SUCCESS);
	CHECK(pread(fd, &byte, 1, 12999) == 1 && byte == 0x66);
	CHECK(pread(fd, &byte, 1, 13000) == 1 && byte == 0);
	wr.wr.rdma.remote_addr++;
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0 && next_wc(&one).status == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, one.memory, 64, 0) == IBV_REREG_MR_ERR_INPUT);
	/* the file shrinks */
	wr.wr.rdma.remote_addr--;
	CHECK(ftruncate(fd, 4096) == 0);
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0 && next_wc(&one).status == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);
	CHECK(ibv_dereg_mr(mr) == 0);
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
}

int main(void)
{
	open_pair(&one, &two);
	callers_get_negative_codes_and_keep_their_region();
	what_is_changed_is_seen_by_peers();
	a_null_region_discards_and_reads_as_zeros();
	a_file_is_registered();
	return close_pair(&one, &two);
}
