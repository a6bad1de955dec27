/* Memory windows: results of the calls, bindings, accesses of a peer, and the end of each window. */
#include "pair.h"

static struct end one, two;
/* of `two`, that windows may be bound to, and its memory */
static struct ibv_mr *region;

static struct ibv_mw_bind_info part(size_t at, size_t length)
{
	return (struct ibv_mw_bind_info){
		.mr = region,
		.addr = (uintptr_t)two.memory + at,
		.length = length,
		.mw_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};
}

/* Returns the status of one RDMA WRITE of eight bytes by `one`. */
static enum ibv_wc_status write_by(uint32_t rkey, uint64_t addr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)one.memory, .length = 8, .lkey = one.mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey },
	}, *bad;

	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	return next_wc(&one).status;
}

static uint64_t address(size_t at)
{
	return (uintptr_t)two.memory + at;
}

static int post_bind(struct ibv_mw *mw, uint32_t rkey, struct ibv_mw_bind_info info)
{
	struct ibv_send_wr wr = {
		.wr_id = 5, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { .mw = mw, .rkey = rkey, .bind_info = info },
	}, *bad;

	return ibv_post_send(two.qp, &wr, &bad);
}

static void callers_are_checked(void)
{
	struct ibv_device_attr attr;
	struct ibv_pd *other = ibv_alloc_pd(context);

	CHECK(ibv_query_device(context, &attr) == 0);
	CHECK(attr.max_mw > 0 && attr.max_mr + attr.max_mw == 262143);
	CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
	CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	CHECK(!(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A));
	/* Local invalidate, SEND with invalidate and windows of type 2: all in type_2(). */
	CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS);

	CHECK_NULL(ibv_alloc_mw(pd, 0), EINVAL);
	CHECK_NULL(ibv_alloc_mw(pd, 3), EINVAL);
	struct ibv_mw *first = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *second = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw *foreign = ibv_alloc_mw(other, IBV_MW_TYPE_1);

	NEED(first && second && foreign);
	CHECK(first->pd == pd && first->context == context && first->type == IBV_MW_TYPE_1 && first->rkey);
	CHECK(ibv_dealloc_pd(other) == EBUSY);
	struct ibv_mw_bind bind = { .bind_info = part(0, 64) };
	uint32_t rkey = first->rkey;

	CHECK(ibv_bind_mw(two.qp, second, &bind) == EINVAL);
	CHECK(ibv_bind_mw(two.qp, foreign, &bind) == EPERM);
	bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED;
	CHECK(ibv_bind_mw(two.qp, first, &bind) == EINVAL);
	bind.bind_info = part(0, 64);
	bind.bind_info.mr = NULL;
	CHECK(ibv_bind_mw(two.qp, first, &bind) == EINVAL);
	struct ibv_mr *null = ibv_alloc_null_mr(pd);

	bind.bind_info.mr = null;
	CHECK(ibv_bind_mw(two.qp, first, &bind) == EOPNOTSUPP);
	CHECK(post_bind(first, first->rkey, part(0, 64)) == EINVAL);
	CHECK(first->rkey == rkey);
	CHECK(ibv_dereg_mr(null) == 0);
	CHECK(ibv_dealloc_mw(first) == 0 && ibv_dealloc_mw(second) == 0 && ibv_dealloc_mw(foreign) == 0);
	CHECK(ibv_dealloc_mw(first) == EINVAL);
	CHECK(post_bind(second, second->rkey, part(0, 64)) == EINVAL);
	CHECK(ibv_dealloc_pd(other) == 0);
}

static void type_1(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .wr_id = 7, .send_flags = IBV_SEND_SIGNALED, .bind_info = part(64, 64) };

	NEED(mw);
	uint32_t unbound = mw->rkey;

	CHECK(ibv_bind_mw(two.qp, mw, &bind) == 0);
	CHECK(mw->rkey == ibv_inc_rkey(unbound));
	struct ibv_wc wc = next_wc(&two);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 7);
	uint32_t first = mw->rkey;

	CHECK(write_by(first, address(64)) == IBV_WC_SUCCESS);
	CHECK(write_by(first, address(120)) == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(region) == EBUSY);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EBUSY);
	CHECK(write_by(first, address(121)) == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);

	/* to another part, by the next key */
	bind.bind_info = part(256, 8);
	CHECK(ibv_bind_mw(two.qp, mw, &bind) == 0 && next_wc(&two).status == IBV_WC_SUCCESS);
	CHECK(write_by(mw->rkey, address(256)) == IBV_WC_SUCCESS);
	CHECK(write_by(first, address(256)) == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);

	/* to an empty part */
	bind.bind_info.length = 0;
	CHECK(ibv_bind_mw(two.qp, mw, &bind) == 0 && next_wc(&two).status == IBV_WC_SUCCESS);
	CHECK(write_by(mw->rkey, address(256)) == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);

	/* a local invalidate of a type 1 window completes with an error */
	bind.bind_info = part(0, 8);
	CHECK(ibv_bind_mw(two.qp, mw, &bind) == 0 && next_wc(&two).status == IBV_WC_SUCCESS);
	struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = mw->rkey }, *bad;

	CHECK(ibv_post_send(two.qp, &wr, &bad) == 0 && next_wc(&two).status == IBV_WC_LOC_QP_OP_ERR);
	reconnect_ends(&one, &two);
	CHECK(write_by(mw->rkey, address(0)) == IBV_WC_SUCCESS);
	CHECK(ibv_dealloc_mw(mw) == 0);
	CHECK(write_by(mw->rkey, address(0)) == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);
}

static void a_bad_bind_is_reported_as_such(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = { .wr_id = 8, .bind_info = part(0, ROOM + 1) };

	NEED(mw);
	/* unsignaled: errors are reported nevertheless */
	CHECK(ibv_bind_mw(two.qp, mw, &bind) == 0);
	struct ibv_wc wc = next_wc(&two);

	CHECK(wc.status == IBV_WC_MW_BIND_ERR && wc.wr_id == 8);
	reconnect_ends(&one, &two);
	bind.bind_info = part(0, 8);
	bind.bind_info.mr = two.mr;
	CHECK(ibv_bind_mw(two.qp, mw, &bind) == 0 && next_wc(&two).status == IBV_WC_MW_BIND_ERR);
	reconnect_ends(&one, &two);
	CHECK(ibv_dealloc_mw(mw) == 0);
}

static void type_2(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_send_wr *bad;

	NEED(mw);
	uint32_t first = ibv_inc_rkey(mw->rkey), second = ibv_inc_rkey(first);

	/* The program may send the key after posting the bind; programs written for irdma do. */
	struct ibv_mw *other_type = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	uint32_t before = mw->rkey;

	NEED(other_type);
	CHECK(post_bind(other_type, first, part(64, 64)) == EINVAL && mw->rkey == before);
	CHECK(ibv_dealloc_mw(other_type) == 0);
	CHECK(post_bind(mw, first, part(64, 64)) == 0 && mw->rkey == first);
	struct ibv_wc wc = next_wc(&two);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 5);
	CHECK(write_by(first, address(64)) == IBV_WC_SUCCESS);
	CHECK(write_by(second, address(64)) == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);
	CHECK(post_bind(mw, second, part(64, 64)) == 0 && next_wc(&two).status == IBV_WC_MW_BIND_ERR);
	reconnect_ends(&one, &two);
	struct ibv_send_wr local = { .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = first };

	CHECK(ibv_post_send(two.qp, &local, &bad) == 0);
	wc = next_wc(&two);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_LOCAL_INV);
	CHECK(write_by(first, address(64)) == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);

	/* by the peer; zero based, and posted by a function */
	struct ibv_mw_bind_info info = part(512, 8);

	info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	before = mw->rkey;
	ibv_wr_start(two.qpx);
	ibv_wr_bind_mw(two.qpx, mw, second, &info);
	ibv_wr_abort(two.qpx);
	CHECK(mw->rkey == before);
	ibv_wr_start(two.qpx);
	two.qpx->wr_id = 9;
	two.qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_bind_mw(two.qpx, mw, second, &info);
	CHECK(ibv_wr_complete(two.qpx) == 0 && mw->rkey == second);
	wc = next_wc(&two);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 9);
	memset(one.memory, 0x77, 8);
	CHECK(write_by(second, 0) == IBV_WC_SUCCESS);
	CHECK(two.memory[512] == 0x77 && two.memory[519] == 0x77);
	post_receive(&two, 3, 0, 64);
	struct ibv_sge sge = { .addr = (uintptr_t)one.memory, .length = 4, .lkey = one.mr->lkey };
	struct ibv_send_wr remote = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = second,
	};

	CHECK(ibv_post_send(one.qp, &remote, &bad) == 0 && next_wc(&one).status == IBV_WC_SUCCESS);
	wc = next_wc(&two);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == second);
	CHECK(ibv_dereg_mr(region) == 0);
	region = ibv_reg_mr(pd, two.memory, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	NEED(region);
	CHECK(write_by(second, 0) == IBV_WC_REM_ACCESS_ERR);
	reconnect_ends(&one, &two);

	/* an invalid key ends the connection of its sender */
	post_receive(&two, 4, 0, 64);
	CHECK(ibv_post_send(one.qp, &remote, &bad) == 0);
	CHECK(next_wc(&one).status == IBV_WC_REM_ACCESS_ERR);
	wc = next_wc(&two);
	CHECK(wc.wr_id == 4 && wc.status == IBV_WC_LOC_ACCESS_ERR);
	reconnect_ends(&one, &two);
	CHECK(ibv_dealloc_mw(mw) == 0);
}

/* A type 2 window ends with its queue pair; then the region can be deregistered. */
static void destruction(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);

	NEED(mw);
	CHECK(post_bind(mw, mw->rkey + 1, part(64, 64)) == 0 && next_wc(&two).status == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(region) == EBUSY);
	free_end(&two);
	CHECK(ibv_dereg_mr(region) == 0);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dealloc_mw(mw) == 0);
}

int main(void)
{
	open_pd();
	one = make_end();
	two = make_end();
	region = ibv_reg_mr(pd, two.memory, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	NEED(region);
	connect_ends(&one, &two);
	callers_are_checked();
	type_1();
	a_bad_bind_is_reported_as_such();
	type_2();
	destruction();
	free_end(&one);
	return close_pd();
}
