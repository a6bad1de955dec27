/* Buffers that the device allocates. The declarations are of rdma-core 65, which is newer than most headers. */
#include "pair.h"

#include <dlfcn.h>

struct buffer;

struct region_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *steering;
	struct buffer *buffer;
};

enum { MASK_IOVA = 1, MASK_ADDR = 2, MASK_FD = 4, MASK_BUFFER = 32, PAGE = 4096, SIZE = 3 * PAGE + 100 };

static void *(*allocate)(struct ibv_pd *pd, size_t size, struct buffer **buffer);
static void (*release)(struct buffer *buffer);
static struct ibv_mr *(*reg)(struct ibv_pd *pd, struct buffer *buffer, void *addr, size_t length, int access);
static struct ibv_mr *(*reg_ex)(struct ibv_pd *pd, struct region_attr *attr);
static int (*export)(struct buffer *buffer);

static void *found(const char *name, const char *version)
{
	void *call = dlvsym(RTLD_DEFAULT, name, version);

	NEED(call);
	return call;
}

static void wrong_callers(char *memory, struct buffer *buffer)
{
	const int access = IBV_ACCESS_LOCAL_WRITE;
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct buffer *none;

	NEED(other);
	CHECK_NULL(allocate(NULL, PAGE, &none), EINVAL);
	CHECK_NULL(allocate(pd, PAGE, NULL), EINVAL);
	CHECK_NULL(allocate(pd, SIZE_MAX / 2, &none), ENOMEM);
	CHECK_NULL(reg(pd, NULL, memory, 1, access), EINVAL);
	CHECK_NULL(reg(NULL, buffer, memory, 1, access), EINVAL);
	CHECK_NULL(reg(other, buffer, memory, 1, access), EINVAL);
	CHECK_NULL(reg(pd, buffer, memory - 1, 1, access), EINVAL);
	CHECK_NULL(reg(pd, buffer, memory, SIZE + 1, access), EINVAL);
	CHECK_NULL(reg(pd, buffer, memory + SIZE, 1, access), EINVAL);
	CHECK_NULL(reg(pd, buffer, memory + 1, SIZE_MAX, access), EINVAL);
	CHECK_NULL(reg(pd, buffer, memory, SIZE, 1 << 12), EINVAL);
	CHECK_MINUS(export(NULL), EINVAL);
	CHECK_MINUS(export(buffer), ENODATA);

	struct region_attr attr = { .length = 8, .access = access, .addr = memory, .buffer = buffer };

	attr.comp_mask = MASK_BUFFER;
	CHECK_NULL(reg_ex(pd, &attr), EINVAL);
	attr.comp_mask = MASK_BUFFER | MASK_ADDR | MASK_FD;
	CHECK_NULL(reg_ex(pd, &attr), EINVAL);
	attr.comp_mask = MASK_BUFFER | MASK_ADDR | 1 << 6;
	CHECK_NULL(reg_ex(pd, &attr), EOPNOTSUPP);
	attr.comp_mask = MASK_BUFFER | MASK_ADDR;
	CHECK_NULL(reg_ex(other, &attr), EINVAL);
	attr.buffer = NULL;
	CHECK_NULL(reg_ex(pd, &attr), EINVAL);
	CHECK(ibv_dealloc_pd(other) == 0);
	release(NULL);
}

/* Octets go from one buffer to another; `iova` is where the peer addresses the second. */
static void traffic(char *memory, struct buffer *buffer)
{
	struct end a, b;
	struct region_attr attr = {
		.length = PAGE,
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
		.comp_mask = MASK_BUFFER | MASK_ADDR | MASK_IOVA,
		.iova = 0x100000,
		.addr = memory + PAGE,
		.buffer = buffer,
	};

	make_pair(&a, &b);
	struct ibv_mr *from = reg(pd, buffer, memory, PAGE, 0), *to = reg_ex(pd, &attr);

	NEED(from && to);
	CHECK(from->addr == memory && from->length == PAGE && from->pd == pd);
	strcpy(memory, "from page to page");
	struct end source = { .qp = a.qp, .memory = memory, .mr = from };
	struct end target = { .memory = (char *)(uintptr_t)attr.iova, .mr = to };

	CHECK(post(&source, IBV_WR_RDMA_WRITE, 3, 0, 18, &target, 5, IBV_SEND_SIGNALED) == 0);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	CHECK(!strcmp(memory + PAGE + 5, "from page to page"));
	CHECK(ibv_dereg_mr(from) == 0 && ibv_dereg_mr(to) == 0);
	free_end(&a);
	free_end(&b);
}

int main(void)
{
	allocate = found("ibv_alloc_buf", "IBVERBS_1.17");
	release = found("ibv_free_buf", "IBVERBS_1.17");
	reg = found("ibv_reg_buf_mr", "IBVERBS_1.17");
	reg_ex = found("ibv_reg_mr_ex", "IBVERBS_1.15");
	export = found("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
	open_pd();

	struct buffer *buffer, *empty;
	char *memory = allocate(pd, SIZE, &buffer);

	NEED(memory && buffer);
	CHECK((uintptr_t)memory % PAGE == 0 && memory[0] == 0 && memory[SIZE - 1] == 0);
	CHECK(allocate(pd, 0, &empty) != NULL);
	release(empty);
	wrong_callers(memory, buffer);
	traffic(memory, buffer);

	/* A domain with permission for unprotected memory is a domain like others. */
	struct ibv_parent_domain_init_attr attr = { .pd = pd, .comp_mask = 1 << 2 };
	struct ibv_pd *plain = pd;

	pd = ibv_alloc_parent_domain(context, &attr);
	NEED(pd);
	struct buffer *second;
	char *more = allocate(pd, SIZE, &second);

	NEED(more);
	traffic(more, second);
	CHECK_NULL(reg(plain, second, more, 1, 0), EINVAL);
	release(second);
	CHECK(ibv_dealloc_pd(pd) == 0);
	pd = plain;

	/* A region may outlive its buffer; a buffer ends once. */
	struct ibv_mr *late = reg(pd, buffer, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);

	NEED(late);
	release(buffer);
	release(buffer);
	CHECK_NULL(reg(pd, buffer, memory, 1, 0), EINVAL);
	CHECK(ibv_dereg_mr(late) == 0);
	return close_pd();
}
