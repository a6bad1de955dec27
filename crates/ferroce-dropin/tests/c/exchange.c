/* Every RC operation between two queue pairs, by ibv_post_send and by ibv_wr_*, polled in both ways. */
#include "pair.h"

#include <endian.h>

static struct end a, b;

static void expect(struct end *end, uint64_t wr_id, enum ibv_wc_opcode opcode, uint32_t length)
{
	struct ibv_wc wc = next_wc(end);

	CHECK(wc.wr_id == wr_id && wc.status == IBV_WC_SUCCESS && wc.opcode == opcode);
	CHECK(wc.qp_num == end->qp->qp_num && wc.slid == 0 && wc.pkey_index == 0);
	/* As rxe, receives have the GRH flag, on connections too. */
	CHECK(!(wc.wc_flags & IBV_WC_GRH) == !(opcode & IBV_WC_RECV) && wc.sl == 0);
	if (opcode & IBV_WC_RECV)
		CHECK(wc.byte_len == length);
}

static void sends_and_receives(void)
{
	struct ibv_wc wc;

	strcpy(a.memory, "hello, peer");
	post_receive(&b, 7, 100, 64);
	CHECK(post(&a, IBV_WR_SEND, 1, 0, 12, &b, 0, IBV_SEND_SIGNALED) == 0);
	expect(&b, 7, IBV_WC_RECV, 12);
	expect(&a, 1, IBV_WC_SEND, 12);
	CHECK(!strcmp(b.memory + 100, "hello, peer"));

	post_receive(&b, 8, 200, 64);
	CHECK(post(&a, IBV_WR_SEND_WITH_IMM, 2, 0, 12, &b, 0, IBV_SEND_SIGNALED) == 0);
	wc = next_wc(&b);
	CHECK(wc.wr_id == 8 && wc.opcode == IBV_WC_RECV && wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM));
	CHECK(wc.imm_data == htobe32(0x11223344));
	expect(&a, 2, IBV_WC_SEND, 12);

	/* Inline data may change as soon as the call returns, and needs no key. */
	char small[16] = "inline";
	struct ibv_sge sge = { .addr = (uintptr_t)small, .length = 7, .lkey = 0xdead };
	struct ibv_send_wr wr = {
		.wr_id = 3,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
	}, *bad;
	post_receive(&b, 9, 300, 64);
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	memset(small, 'x', sizeof(small));
	expect(&b, 9, IBV_WC_RECV, 7);
	expect(&a, 3, IBV_WC_SEND, 7);
	CHECK(!strcmp(b.memory + 300, "inline"));
	sge.length = 4096;
	sge.addr = (uintptr_t)a.memory;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == EINVAL && bad == &wr);

	/* An empty message. */
	wr = (struct ibv_send_wr){ .wr_id = 4, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	post_receive(&b, 10, 0, 0);
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	expect(&b, 10, IBV_WC_RECV, 0);
	expect(&a, 4, IBV_WC_SEND, 0);
}

static void reads_and_writes(void)
{
	for (int i = 0; i < ROOM; i++)
		a.memory[i] = (char)(i * 7 + i / 256);
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 11, 0, ROOM, &b, 0, IBV_SEND_SIGNALED) == 0);
	expect(&a, 11, IBV_WC_RDMA_WRITE, ROOM);
	CHECK(!memcmp(a.memory, b.memory, ROOM));

	memset(a.memory, 0, ROOM);
	CHECK(post(&a, IBV_WR_RDMA_READ, 12, 1, ROOM - 9, &b, 5, IBV_SEND_SIGNALED) == 0);
	struct ibv_wc wc = next_wc(&a);

	CHECK(wc.wr_id == 12 && wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == ROOM - 9);
	CHECK(!memcmp(a.memory + 1, b.memory + 5, ROOM - 9));

	post_receive(&b, 13, 0, 0);
	CHECK(post(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 14, 0, 5000, &b, 64, IBV_SEND_SIGNALED) == 0);
	wc = next_wc(&b);
	CHECK(wc.wr_id == 13 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == 5000);
	CHECK(wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && wc.imm_data == htobe32(0x11223344));
	expect(&a, 14, IBV_WC_RDMA_WRITE, 5000);
}

static void atomics(void)
{
	uint64_t *counter = (uint64_t *)(b.memory + 512), *before = (uint64_t *)(a.memory + 64);
	struct ibv_sge sge = { .addr = (uintptr_t)before, .length = 8, .lkey = a.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 21, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	*counter = 1000;
	wr.wr.atomic.remote_addr = (uintptr_t)counter;
	wr.wr.atomic.rkey = b.mr->rkey;
	wr.wr.atomic.compare_add = 5;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	expect(&a, 21, IBV_WC_FETCH_ADD, 8);
	CHECK(*before == 1000 && *counter == 1005);

	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.compare_add = 1005;
	wr.wr.atomic.swap = 77;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	expect(&a, 21, IBV_WC_COMP_SWAP, 8);
	CHECK(*before == 1005 && *counter == 77);
	wr.wr.atomic.remote_addr += 4;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == EINVAL);
	wr.wr.atomic.remote_addr -= 4;
	sge.length = 4;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == EINVAL);
}

/* The chain stops at the refused request; the ones before it are posted. */
static void a_chain_stops_where_it_is_wrong(void)
{
	struct ibv_send_wr wr[3] = {}, *bad = NULL;

	for (int i = 0; i < 3; i++)
		wr[i] = (struct ibv_send_wr){
			.wr_id = 30 + i,
			.next = i < 2 ? &wr[i + 1] : NULL,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
		};
	wr[1].opcode = 55;
	CHECK(ibv_post_send(a.qp, wr, &bad) == EINVAL && bad == &wr[1]);
	expect(&a, 30, IBV_WC_RDMA_WRITE, 0);
	wr[1].opcode = IBV_WR_RDMA_WRITE;
	wr[1].num_sge = 9;
	struct ibv_sge many[9] = {};

	wr[1].sg_list = many;
	CHECK(ibv_post_send(a.qp, wr, &bad) == EINVAL && bad == &wr[1]);
	expect(&a, 30, IBV_WC_RDMA_WRITE, 0);
	struct ibv_wc wc;

	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
}

static void built_by_functions(void)
{
	struct ibv_qp_ex *qp = a.qpx;
	struct ibv_poll_cq_attr poll = {};

	memset(a.memory, 'w', 3000);
	memset(b.memory, 0, 8192);
	post_receive(&b, 50, 4096, 64);
	ibv_wr_start(qp);
	qp->wr_id = 40;
	qp->wr_flags = 0;
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory, 3000);
	qp->wr_id = 41;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(qp, htobe32(99));
	struct ibv_data_buf parts[2] = { { .addr = "split ", .length = 6 }, { .addr = "inline", .length = 7 } };

	ibv_wr_set_inline_data_list(qp, 2, parts);
	CHECK(ibv_wr_complete(qp) == 0);

	alarm(20);
	while (ibv_start_poll(b.cq_ex, &poll) == ENOENT)
		;
	CHECK(b.cq_ex->status == IBV_WC_SUCCESS && b.cq_ex->wr_id == 50);
	CHECK(ibv_wc_read_opcode(b.cq_ex) == IBV_WC_RECV && ibv_wc_read_byte_len(b.cq_ex) == 13);
	CHECK(ibv_wc_read_wc_flags(b.cq_ex) == (IBV_WC_GRH | IBV_WC_WITH_IMM) && ibv_wc_read_imm_data(b.cq_ex) == htobe32(99));
	CHECK(ibv_wc_read_qp_num(b.cq_ex) == b.qp->qp_num && ibv_wc_read_vendor_err(b.cq_ex) == 0);
	CHECK(ibv_wc_read_slid(b.cq_ex) == 0 && ibv_wc_read_sl(b.cq_ex) == 0);
	CHECK(ibv_next_poll(b.cq_ex) == ENOENT);
	ibv_end_poll(b.cq_ex);
	alarm(0);
	CHECK(!strcmp(b.memory + 4096, "split inline") && !memcmp(a.memory, b.memory, 3000));
	expect(&a, 41, IBV_WC_SEND, 0);

	/* Aborted and failed batches post no request. */
	struct ibv_wc wc;

	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory, 8);
	ibv_wr_abort(qp);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);

	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_inline_data(qp, a.memory, 1000);
	ibv_wr_rdma_read(qp, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory, 8);
	CHECK(ibv_wr_complete(qp) == ENOSPC);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);

	ibv_wr_start(qp);
	for (int i = 0; i < 200; i++) {
		ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
		ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory, 8);
	}
	CHECK(ibv_wr_complete(qp) == ENOMEM);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);

	struct ibv_sge piece = { .addr = (uintptr_t)a.memory, .length = 8, .lkey = a.mr->lkey };

	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_sge_list(qp, SIZE_MAX, &piece);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data_list(qp, SIZE_MAX, parts);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, a.memory, SIZE_MAX);
	CHECK(ibv_wr_complete(qp) == ENOSPC);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge_list(qp, 1, NULL);
	CHECK(ibv_wr_complete(qp) == EINVAL);

	/* Builders without a setter, setters without a builder, no open batch: no crash. */
	ibv_wr_start(qp);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory, 8);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	ibv_wr_abort(qp);
	ibv_wr_send(qp);
	ibv_wr_start(qp);
	qp->wr_id = 44;
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
	CHECK(ibv_wr_complete(qp) == 0);
	expect(&a, 44, IBV_WC_RDMA_WRITE, 0);
}

static void events_wake_once(void)
{
	struct pollfd fd = { .fd = b.channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *user;

	CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
	CHECK(poll(&fd, 1, 0) == 0);
	post_receive(&b, 60, 0, 64);
	CHECK(post(&a, IBV_WR_SEND, 61, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(poll(&fd, 1, 5000) == 1);
	CHECK(ibv_get_cq_event(b.channel, &cq, &user) == 0);
	CHECK(cq == b.cq && user == &context);
	CHECK(poll(&fd, 1, 0) == 0);
	expect(&b, 60, IBV_WC_RECV, 8);
	expect(&a, 61, IBV_WC_SEND, 8);
	ibv_ack_cq_events(cq, 1);

	/* Solicited only: an ordinary message raises no event, a solicited one does. */
	CHECK(ibv_req_notify_cq(b.cq, 1) == 0);
	post_receive(&b, 62, 0, 64);
	post_receive(&b, 63, 0, 64);
	CHECK(post(&a, IBV_WR_SEND, 64, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
	expect(&a, 64, IBV_WC_SEND, 8);
	CHECK(poll(&fd, 1, 100) == 0);
	CHECK(post(&a, IBV_WR_SEND, 65, 0, 8, &b, 0, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED) == 0);
	CHECK(poll(&fd, 1, 5000) == 1);
	CHECK(ibv_get_cq_event(b.channel, &cq, &user) == 0);
	ibv_ack_cq_events(cq, 1);
	expect(&b, 62, IBV_WC_RECV, 8);
	expect(&b, 63, IBV_WC_RECV, 8);
	expect(&a, 65, IBV_WC_SEND, 8);
}

static void attributes_come_back(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	memset(&attr, 0xa5, sizeof(attr));
	CHECK(ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.cur_qp_state == IBV_QPS_RTS && attr.path_mtu == IBV_MTU_1024);
	CHECK(attr.dest_qp_num == b.qp->qp_num && attr.port_num == 1 && attr.pkey_index == 0);
	CHECK(attr.timeout == 12 && attr.retry_cnt == 7 && attr.rnr_retry == 7 && attr.min_rnr_timer == 1);
	CHECK(attr.max_rd_atomic == 4 && attr.max_dest_rd_atomic == 4 && attr.ah_attr.is_global == 1);
	CHECK(attr.ah_attr.grh.sgid_index == 0 && attr.ah_attr.grh.dgid.raw[12] == 127);
	CHECK(attr.qp_access_flags == (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
	CHECK(attr.cap.max_send_wr >= 16 && attr.sq_draining == 0 && attr.rate_limit == 0);
	CHECK(init.qp_type == IBV_QPT_RC && init.send_cq == a.cq && init.qp_context == &pd);
	CHECK(init.cap.max_inline_data == attr.cap.max_inline_data);
	CHECK(ibv_query_qp_data_in_order(a.qp, IBV_WR_RDMA_WRITE, 0) == 0);
}

/* An unknown key: both ends move to the error state, and report it. */
static void errors_are_reported(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_sge sge = { .addr = (uintptr_t)a.memory, .length = 8, .lkey = a.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 80, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;

	post_receive(&a, 81, 0, 64);
	wr.wr.rdma.remote_addr = (uintptr_t)b.memory;
	wr.wr.rdma.rkey = b.mr->rkey ^ 0x100;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	struct ibv_wc wc = next_wc(&a);

	CHECK(wc.wr_id == 80 && wc.status == IBV_WC_REM_ACCESS_ERR && wc.qp_num == a.qp->qp_num);
	wc = next_wc(&a);
	CHECK(wc.wr_id == 81 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_query_qp(a.qp, &attr, 0, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
	CHECK(a.qp->state == IBV_QPS_ERR);
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	wc = next_wc(&a);
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);

	/* The responder raises an asynchronous event, because the request consumes no receive. */
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	int told = 0;

	while (poll(&fd, 1, told ? 0 : 5000) == 1) {
		struct ibv_async_event event;

		NEED(ibv_get_async_event(context, &event) == 0);
		if (event.event_type == IBV_EVENT_QP_ACCESS_ERR) {
			CHECK(event.element.qp == b.qp);
			told = 1;
		}
		ibv_ack_async_event(&event);
	}
	CHECK(told);
}

int main(void)
{
	open_pair(&a, &b);
	sends_and_receives();
	reads_and_writes();
	atomics();
	a_chain_stops_where_it_is_wrong();
	built_by_functions();
	events_wake_once();
	attributes_come_back();
	errors_are_reported();
	return close_pair(&a, &b);
}
