/* Thread domains and parent domains: their objects work as in a plain domain, and are destroyed in order. */
#include "pair.h"

static int allocations;

static void *allocate(struct ibv_pd *domain, void *user, size_t size, size_t alignment, uint64_t type)
{
	(void)domain, (void)size, (void)alignment, (void)type;
	allocations += user == &allocations;
	return IBV_ALLOCATOR_USE_DEFAULT;
}

static void release(struct ibv_pd *domain, void *user, void *memory, uint64_t type)
{
	(void)domain, (void)user, (void)memory, (void)type;
}

static struct ibv_td *make_td(void)
{
	struct ibv_td_init_attr init = {};
	struct ibv_td *td = ibv_alloc_td(context, &init);

	NEED(td && td->context == context);
	return td;
}

static void wrong_callers(void)
{
	struct ibv_td_init_attr init = { .comp_mask = 1 };
	struct ibv_parent_domain_init_attr attr = {};
	struct ibv_context *other = open_device();
	struct ibv_td *td = make_td();

	CHECK_NULL(ibv_alloc_td(context, &init), EOPNOTSUPP);
	CHECK_NULL(verbs_get_ctx(context)->alloc_td(context, NULL), EINVAL);
	CHECK_NULL(verbs_get_ctx(context)->alloc_td(NULL, &init), EINVAL);
	CHECK_NULL(verbs_get_ctx(context)->alloc_parent_domain(context, NULL), EINVAL);
	CHECK_NULL(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.pd = pd;
	attr.comp_mask = 1u << 20;
	CHECK_NULL(ibv_alloc_parent_domain(context, &attr), EOPNOTSUPP);
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	attr.alloc = allocate;
	CHECK_NULL(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.comp_mask = 0;
	CHECK_NULL(ibv_alloc_parent_domain(other, &attr), EINVAL);
	attr.td = td;
	struct ibv_pd *foreign = ibv_alloc_pd(other);

	attr.pd = foreign;
	CHECK_NULL(ibv_alloc_parent_domain(other, &attr), EINVAL);
	CHECK(ibv_dealloc_pd(foreign) == 0);
	CHECK(ibv_dealloc_td(td) == 0);
	CHECK(verbs_get_ctx(context)->dealloc_td(td) == EINVAL);
	attr.pd = pd;
	CHECK_NULL(ibv_alloc_parent_domain(context, &attr), EINVAL);
	CHECK(ibv_close_device(other) == 0);
}

/* All objects in the parent domain: the pair of pair.h, extended queues, and keys of the plain domain. */
static void traffic(struct ibv_pd *parent)
{
	struct ibv_pd *plain = pd;
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent,
	};
	struct ibv_cq_ex *queue = ibv_create_cq_ex(context, &cq_attr);

	NEED(queue);
	CHECK(ibv_dealloc_pd(parent) == EBUSY);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(queue)) == 0);

	pd = parent;
	struct end a = make_end(), b = make_end();

	pd = plain;
	CHECK(a.qp->pd == parent && a.mr->pd == parent);
	CHECK(ibv_dealloc_pd(parent) == EBUSY && ibv_dealloc_pd(plain) == EBUSY);
	connect_ends(&a, &b);
	/* A region of the plain domain in a queue pair of the parent domain. */
	struct ibv_mr *own = b.mr;

	b.mr = ibv_reg_mr(plain, b.memory, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	NEED(b.mr);
	strcpy(a.memory, "through two domains");
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 7, 0, 20, &b, 100, IBV_SEND_SIGNALED) == 0);
	struct ibv_wc wc = next_wc(&a);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7);
	CHECK(!strcmp(b.memory + 100, "through two domains"));
	CHECK(ibv_dereg_mr(b.mr) == 0);
	b.mr = own;
	free_end(&a);
	free_end(&b);
}

int main(void)
{
	open_pd();
	wrong_callers();

	struct ibv_td *td = make_td();
	struct ibv_parent_domain_init_attr attr = {
		.pd = pd,
		.td = td,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = allocate,
		.free = release,
		.pd_context = &allocations,
	};
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);

	NEED(parent && parent != pd && parent->context == context);
	attr.pd = parent;
	CHECK_NULL(ibv_alloc_parent_domain(context, &attr), EINVAL);
	traffic(parent);
	CHECK(ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dealloc_pd(parent) == 0);
	CHECK(ibv_dealloc_pd(parent) == EINVAL);
	CHECK(ibv_dealloc_td(td) == 0);
	return close_pd();
}
