/* Imports within one process: a second context, domain and region for those of the first. */
#include "pair.h"

#include <fcntl.h>

int main(void)
{
	open_pd();
	struct end a = make_end();
	struct ibv_context *other = open_device();
	int pipes[2];

	/* Closed descriptors, descriptors of other files, and unknown handles. */
	NEED(pipe(pipes) == 0);
	CHECK_NULL(ibv_import_device(-1), EBADF);
	CHECK_NULL(ibv_import_device(pipes[0]), EOPNOTSUPP);
	CHECK(fcntl(pipes[0], F_GETFD) != -1);
	CHECK_NULL(ibv_import_pd(context, 0xfffffff), EINVAL);
	CHECK_NULL(ibv_import_pd(other, pd->handle), EINVAL);
	CHECK_NULL(ibv_import_pd(NULL, pd->handle), EINVAL);
	CHECK_NULL(ibv_import_mr(pd, 0xfffffff), EINVAL);
	CHECK_NULL(ibv_import_mr(NULL, a.mr->handle), EINVAL);
	ibv_unimport_pd(NULL);
	ibv_unimport_mr(NULL);
	ibv_unimport_pd(pd);
	CHECK(ibv_close_device(other) == 0);

	int fd = dup(context->cmd_fd);
	struct ibv_context *imported = ibv_import_device(fd);

	NEED(imported && imported != context && imported->cmd_fd == fd && imported->device == context->device);
	CHECK(imported->async_fd != context->async_fd);
	struct ibv_pd *domain = ibv_import_pd(imported, pd->handle);
	struct ibv_pd *again = ibv_import_pd(imported, pd->handle);

	NEED(domain && again && domain != pd && domain->handle == pd->handle && domain->context == imported);
	struct ibv_mr *mr = ibv_import_mr(domain, a.mr->handle);

	NEED(mr && mr->lkey == a.mr->lkey && mr->rkey == a.mr->rkey && mr->addr == NULL && mr->length == ROOM);
	CHECK(mr->pd == domain && mr->context == imported);

	/* A queue pair of the imported domain accesses the first context's memory. */
	struct ibv_context *first = context;
	struct ibv_pd *own = pd;

	context = imported;
	pd = domain;
	struct end b = make_end();

	to_rts(&b, a.qp->qp_num);
	context = first;
	pd = own;
	to_rts(&a, b.qp->qp_num);
	CHECK(ibv_dealloc_pd(domain) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	struct ibv_mr *registered = b.mr;

	b.mr = mr;
	b.memory[0] = 0;
	strcpy(a.memory + 64, "imported");
	struct ibv_sge sge = { .addr = (uintptr_t)a.memory + 64, .length = 9, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)a.memory + 512;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_send(b.qp, &wr, &bad) == 0);
	CHECK(next_wc(&b).status == IBV_WC_SUCCESS);
	CHECK(!strcmp(a.memory + 512, "imported"));

	/* Unimporting leaves the originals. */
	ibv_unimport_mr(mr);
	CHECK(ibv_dereg_mr(mr) == EINVAL);
	b.mr = registered;
	free_end(&b);
	ibv_unimport_pd(domain);
	CHECK(ibv_dealloc_pd(domain) == EINVAL);
	free_end(&a);
	/* Another import remains, and with its end the domain ends. */
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dealloc_pd(again) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(imported) == 0);
	CHECK(fcntl(fd, F_GETFD) == -1);
	CHECK(ibv_close_device(context) == 0);
	return finish();
}
