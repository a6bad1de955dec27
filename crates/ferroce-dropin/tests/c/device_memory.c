/* Device memory: its limits, copies to and from it, regions of it in every operation, imports, and forked children. */
#include "pair.h"

#include <pthread.h>

#include <sys/mman.h>
#include <sys/wait.h>

static struct end a, b;
static uint64_t most;

enum { ALL_ACCESS = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static struct ibv_dm *allocate(size_t length, uint32_t log_align)
{
	struct ibv_alloc_dm_attr attr = { .length = length, .log_align_req = log_align };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);

	return dm;
}

static void allocations_have_limits(void)
{
	struct ibv_alloc_dm_attr unknown = { .length = 64, .comp_mask = 1 };
	struct ibv_device_attr_ex attr;
	struct ibv_dm *dm, *others[4];

	NEED(ibv_query_device_ex(context, NULL, &attr) == 0);
	most = attr.max_dm_size;
	NEED(most >= 1 << 20);
	CHECK_NULL(allocate(0, 0), EINVAL);
	CHECK_NULL(allocate(most + 1, 0), ENOMEM);
	CHECK_NULL(allocate(SIZE_MAX, 0), ENOMEM);
	CHECK_NULL(allocate(64, 25), EINVAL);
	CHECK_NULL(allocate(64, 63), EINVAL);
	CHECK_NULL(allocate(64, 64), EINVAL);
	CHECK_NULL(allocate(64, UINT32_MAX), EINVAL);
	CHECK_NULL(ibv_alloc_dm(context, &unknown), EOPNOTSUPP);
	CHECK_NULL(ibv_alloc_dm(context, NULL), EINVAL);
	/* The limit is the sum of all, and returns with the memory. */
	for (int round = 0; round < 3; round++) {
		dm = allocate(most, 0);
		NEED(dm);
		CHECK_NULL(allocate(4, 0), ENOMEM);
		CHECK(ibv_free_dm(dm) == 0);
		CHECK(ibv_free_dm(dm) == EINVAL);
	}
	for (int i = 0; i < 4; i++) {
		others[i] = allocate(most / 4, 8 * i);
		NEED(others[i]);
	}
	CHECK_NULL(allocate(4, 0), ENOMEM);
	for (int i = 0; i < 4; i++)
		CHECK(ibv_free_dm(others[i]) == 0);
}

static void copies_are_checked(void)
{
	struct ibv_dm *dm = allocate(10000, 6);
	char octets[12000], back[12000];
	char *hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	NEED(dm && dm->context == context && dm->comp_mask & IBV_DM_MASK_HANDLE && hole != MAP_FAILED);
	/* Not unmapped: another thread's mapping could take the place. */
	NEED(mprotect(hole + 4096, 4096, PROT_NONE) == 0);
	memset(back, 1, sizeof(back));
	CHECK(ibv_memcpy_from_dm(back, dm, 0, 10000) == 0);
	for (int i = 0; i < 10000; i++)
		NEED(back[i] == 0);
	CHECK(back[10000] == 1);
	for (int i = 0; i < 12000; i++)
		octets[i] = i * 7 + i / 256;
	CHECK(ibv_memcpy_to_dm(dm, 4, octets, 9996) == 0);
	CHECK(ibv_memcpy_from_dm(back, dm, 4, 9996) == 0);
	CHECK(!memcmp(octets, back, 9996));
	CHECK(ibv_memcpy_to_dm(dm, 10000, NULL, 0) == 0);

	static const struct {
		uint64_t offset;
		size_t length;
		int error;
	} cases[] = {
		{ 1, 4, EINVAL }, { 0, 3, EINVAL }, { 2, 2, EINVAL },
		{ 10000, 4, EFAULT }, { 0, 10004, EFAULT }, { 9996, 8, EFAULT },
		{ UINT64_MAX - 3, 8, EFAULT }, { 4, SIZE_MAX - 3, EFAULT }, { UINT64_MAX - 3, 4, EFAULT },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		CHECK(ibv_memcpy_to_dm(dm, cases[i].offset, octets, cases[i].length) == cases[i].error);
		CHECK(ibv_memcpy_from_dm(octets, dm, cases[i].offset, cases[i].length) == cases[i].error);
	}
	CHECK(ibv_memcpy_to_dm(dm, 0, NULL, 4) == EFAULT);
	CHECK(ibv_memcpy_from_dm(NULL, dm, 0, 4) == EFAULT);
	CHECK(ibv_memcpy_to_dm(dm, 0, hole + 4092, 8) == EFAULT);
	CHECK(ibv_memcpy_from_dm(hole + 4092, dm, 0, 8) == EFAULT);
	CHECK(ibv_free_dm(dm) == 0);
	CHECK(ibv_memcpy_to_dm(dm, 0, octets, 4) == EINVAL);
	CHECK(ibv_memcpy_from_dm(octets, dm, 0, 4) == EINVAL);
	munmap(hole, 8192);
}

static void registrations_are_checked(void)
{
	struct ibv_dm *dm = allocate(100, 0);
	struct ibv_context *other = ibv_open_device(context->device);
	struct ibv_pd *foreign = ibv_alloc_pd(other);
	struct ibv_mr *mr;

	NEED(dm && other && foreign);
	CHECK_NULL(ibv_reg_dm_mr(pd, dm, 0, 100, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	CHECK_NULL(ibv_reg_dm_mr(pd, dm, 0, 104, ALL_ACCESS), EINVAL);
	CHECK_NULL(ibv_reg_dm_mr(pd, dm, 101, 0, ALL_ACCESS), EINVAL);
	CHECK_NULL(ibv_reg_dm_mr(pd, dm, UINT64_MAX, 2, ALL_ACCESS), EINVAL);
	CHECK_NULL(ibv_reg_dm_mr(pd, dm, 4, SIZE_MAX, ALL_ACCESS), EINVAL);
	CHECK_NULL(ibv_reg_dm_mr(pd, dm, 0, 100, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE), EINVAL);
	CHECK_NULL(ibv_reg_dm_mr(foreign, dm, 0, 100, ALL_ACCESS), EINVAL);
	CHECK(ibv_dealloc_pd(foreign) == 0 && ibv_close_device(other) == 0);
	mr = ibv_reg_dm_mr(pd, dm, 0, 0, ALL_ACCESS);
	NEED(mr && mr->length == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	mr = ibv_reg_dm_mr(pd, dm, 100, 0, ALL_ACCESS);
	NEED(mr);
	CHECK(ibv_dereg_mr(mr) == 0);
	mr = ibv_reg_dm_mr(pd, dm, 20, 80, ALL_ACCESS);
	NEED(mr && mr->addr == NULL && mr->length == 80 && mr->context == context && mr->pd == pd);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_free_dm(dm) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_free_dm(dm) == 0);
	CHECK_NULL(ibv_reg_dm_mr(pd, dm, 0, 4, ALL_ACCESS), EINVAL);
}

/* An operation of `a` between its own memory, or the region `local` at `at`, and the region `remote` at `remote_at`. */
static enum ibv_wc_status operate(enum ibv_wr_opcode opcode, struct ibv_mr *local, uint64_t at, uint32_t length,
				  struct ibv_mr *remote, uint64_t remote_at, uint64_t add)
{
	struct ibv_sge sge = { .addr = at, .length = length, .lkey = local->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = remote_at;
		wr.wr.atomic.rkey = remote->rkey;
		wr.wr.atomic.compare_add = add;
	} else {
		wr.wr.rdma.remote_addr = remote_at;
		wr.wr.rdma.rkey = remote->rkey;
	}
	NEED(ibv_post_send(a.qp, &wr, &bad) == 0);
	return next_wc(&a).status;
}

static void every_operation_reaches_it(void)
{
	enum { LENGTH = 40000, FROM = 8 };
	struct ibv_dm *dm = allocate(LENGTH + FROM, 3);
	struct ibv_dm *near = allocate(LENGTH, 0);
	struct ibv_mr *mr, *local;
	char *back = malloc(LENGTH);
	uint64_t word = 40;
	uintptr_t memory = (uintptr_t)a.memory;

	NEED(dm && near && back);
	mr = ibv_reg_dm_mr(pd, dm, FROM, LENGTH, ALL_ACCESS);
	local = ibv_reg_dm_mr(pd, near, 0, LENGTH, ALL_ACCESS);
	NEED(mr && local);
	for (int i = 0; i < LENGTH; i++)
		a.memory[i] = i * 13 + i / 256;
	CHECK(operate(IBV_WR_RDMA_WRITE, a.mr, memory, LENGTH, mr, 0, 0) == IBV_WC_SUCCESS);
	CHECK(ibv_memcpy_from_dm(back, dm, FROM, LENGTH) == 0);
	CHECK(!memcmp(back, a.memory, LENGTH));
	CHECK(operate(IBV_WR_RDMA_READ, local, 0, LENGTH, mr, 0, 0) == IBV_WC_SUCCESS);
	memset(back, 0, LENGTH);
	CHECK(ibv_memcpy_from_dm(back, near, 0, LENGTH) == 0);
	CHECK(!memcmp(back, a.memory, LENGTH));

	CHECK(ibv_memcpy_to_dm(dm, FROM + 16, &word, 8) == 0);
	CHECK(operate(IBV_WR_ATOMIC_FETCH_AND_ADD, local, 8, 8, mr, 16, 2) == IBV_WC_SUCCESS);
	CHECK(ibv_memcpy_from_dm(&word, near, 8, 8) == 0 && word == 40);
	CHECK(ibv_memcpy_from_dm(&word, dm, FROM + 16, 8) == 0 && word == 42);

	/* A message from device memory, received in device memory. */
	struct ibv_sge sge = { .addr = 24, .length = 1000, .lkey = mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(b.qp, &receive, &bad) == 0);
	CHECK(operate(IBV_WR_SEND, local, 100, 1000, mr, 0, 0) == IBV_WC_SUCCESS);
	CHECK(next_wc(&b).byte_len == 1000);
	CHECK(ibv_memcpy_from_dm(back, dm, FROM + 24, 1000) == 0);
	CHECK(!memcmp(back, a.memory + 100, 1000));

	/* Neither before nor behind the region, though the memory is there. */
	CHECK(operate(IBV_WR_RDMA_WRITE, a.mr, memory, 4, mr, LENGTH, 0) == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&a, &b);
	CHECK(operate(IBV_WR_RDMA_WRITE, a.mr, memory, 8, mr, UINT64_MAX - 7, 0) == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&a, &b);
	CHECK(operate(IBV_WR_RDMA_READ, local, LENGTH - 4, 8, mr, 0, 0) == IBV_WC_LOC_PROT_ERR);
	reconnect_ends(&a, &b);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(local) == 0);
	CHECK(ibv_free_dm(dm) == 0 && ibv_free_dm(near) == 0);
	free(back);
}

static void imports_are_the_same_memory(void)
{
	struct ibv_dm *dm = allocate(4096, 0), *other, *again;
	struct ibv_context *imported = ibv_import_device(dup(context->cmd_fd));
	struct ibv_context *stranger = ibv_open_device(context->device);
	uint64_t word = 0x1122334455667788, back = 0;

	NEED(dm && imported && stranger);
	CHECK_NULL(ibv_import_dm(imported, 0xfffffff), EINVAL);
	CHECK_NULL(ibv_import_dm(stranger, dm->handle), EINVAL);
	CHECK_NULL(ibv_import_dm(NULL, dm->handle), EINVAL);
	ibv_unimport_dm(NULL);
	other = ibv_import_dm(imported, dm->handle);
	again = ibv_import_dm(imported, dm->handle);
	NEED(other && again && other != dm && other->handle == dm->handle && other->context == imported);
	CHECK(ibv_memcpy_to_dm(dm, 8, &word, 8) == 0);
	CHECK(ibv_memcpy_from_dm(&back, other, 8, 8) == 0 && back == word);
	ibv_unimport_dm(other);
	CHECK(ibv_memcpy_from_dm(&back, other, 8, 8) == EINVAL);
	CHECK(ibv_memcpy_from_dm(&back, dm, 8, 8) == 0);
	/* Freeing one ends all, and the rest is only unimported. */
	CHECK(ibv_free_dm(dm) == 0);
	CHECK(ibv_memcpy_from_dm(&back, again, 8, 8) == EINVAL);
	CHECK_NULL(allocate(most, 0), ENOMEM);
	ibv_unimport_dm(again);
	dm = allocate(most, 0);
	NEED(dm);
	CHECK(ibv_free_dm(dm) == 0);
	CHECK(ibv_close_device(imported) == 0 && ibv_close_device(stranger) == 0);
}

/* In the child: the parent's device memory is shared memory, and own memory can be had, but not registered. */
static int child(struct ibv_dm *dm, struct ibv_mr *mr)
{
	struct ibv_device_attr_ex attr;
	uint64_t word = 0;
	struct ibv_dm *own;

	alarm(20);
	failures = 0;
	CHECK(ibv_memcpy_from_dm(&word, dm, 0, 8) == 0 && word == 1);
	word = 2;
	CHECK(ibv_memcpy_to_dm(dm, 0, &word, 8) == 0);
	CHECK(ibv_query_device_ex(context, NULL, &attr) == 0 && attr.max_dm_size == most);
	own = allocate(most / 4, 0);
	NEED(own);
	CHECK(ibv_memcpy_to_dm(own, 0, &word, 8) == 0);
	CHECK_NULL(ibv_reg_dm_mr(pd, own, 0, 8, ALL_ACCESS), EIO);
	CHECK_NULL(ibv_import_dm(context, dm->handle), EIO);
	CHECK(ibv_free_dm(own) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_free_dm(dm) == 0);
	return finish();
}

static void children_share_it(void)
{
	struct ibv_dm *dm = allocate(4096, 0);
	struct ibv_mr *mr;
	uint64_t word = 1;
	int status = -1;
	pid_t pid;

	NEED(dm);
	mr = ibv_reg_dm_mr(pd, dm, 0, 4096, ALL_ACCESS);
	NEED(mr);
	CHECK(ibv_memcpy_to_dm(dm, 0, &word, 8) == 0);
	pid = fork();
	NEED(pid >= 0);
	if (pid == 0)
		_exit(child(dm, mr));
	NEED(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(ibv_memcpy_from_dm(&word, dm, 0, 8) == 0 && word == 2);
	CHECK(operate(IBV_WR_RDMA_READ, a.mr, (uintptr_t)a.memory, 8, mr, 0, 0) == IBV_WC_SUCCESS);
	CHECK(a.memory[0] == 2);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_free_dm(dm) == 0);
}

static volatile int over;

static void *polls(void *unused)
{
	struct ibv_wc wc;

	(void)unused;
	while (!over) ibv_poll_cq(a.cq, 1, &wc);
	return NULL;
}

/* A thread that polls another queue is inside the library nearly always. */
static void it_returns_beside_a_thread_that_polls(void)
{
	struct ibv_device_attr_ex attr;
	pthread_t thread;

	NEED(ibv_query_device_ex(context, NULL, &attr) == 0);
	NEED(pthread_create(&thread, NULL, polls, NULL) == 0);
	for (int i = 0; i < 500; i++) {
		struct ibv_alloc_dm_attr all = { .length = attr.max_dm_size };
		struct ibv_dm *dm = ibv_alloc_dm(context, &all);
		NEED(dm);
		NEED(ibv_free_dm(dm) == 0);
	}
	over = 1;
	NEED(pthread_join(thread, NULL) == 0);
}

int main(void)
{
	open_pair(&a, &b);
	allocations_have_limits();
	copies_are_checked();
	registrations_are_checked();
	every_operation_reaches_it();
	imports_are_the_same_memory();
	it_returns_beside_a_thread_that_polls();
	children_share_it();
	return close_pair(&a, &b);
}
