/* Shared receive queues: accepted and refused arguments, events, and the order of destruction. */
#include "pair.h"

#include <fcntl.h>
#include <pthread.h>

static struct end a, b;
static struct ibv_srq *srq;
static struct ibv_qp *shared;
static struct ibv_async_event limit;
static volatile int acknowledged;

static int post_srq(uint64_t wr_id, int num_sge)
{
	struct ibv_sge sge[3];
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = sge, .num_sge = num_sge }, *bad = NULL;
	int ret;

	for (int i = 0; i < 3; i++)
		sge[i] = (struct ibv_sge){ .addr = (uintptr_t)b.memory + 64 * i, .length = 64, .lkey = b.mr->lkey };
	ret = ibv_post_srq_recv(srq, &wr, &bad);
	CHECK(ret ? bad == &wr : bad == NULL);
	return ret;
}

static void what_creation_refuses(void)
{
	struct ibv_device_attr device;
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 0, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex ex = { .attr = { .max_wr = 4, .max_sge = 1 }, .pd = pd };

	CHECK(ibv_query_device(context, &device) == 0);
	CHECK(device.max_srq > 0 && device.max_srq_wr > 0 && device.max_srq_sge > 0);
	CHECK(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE);
	CHECK_NULL(ibv_create_srq(NULL, &init), EINVAL);
	CHECK_NULL(ibv_create_srq(pd, NULL), EINVAL);
	CHECK_NULL(ibv_create_srq(pd, &init), EINVAL);
	init.attr = (struct ibv_srq_attr){ .max_wr = device.max_srq_wr + 1, .max_sge = 1 };
	CHECK_NULL(ibv_create_srq(pd, &init), EINVAL);
	init.attr = (struct ibv_srq_attr){ .max_wr = 1, .max_sge = device.max_srq_sge + 1 };
	CHECK_NULL(ibv_create_srq(pd, &init), EINVAL);
	/* The reported maximum is available; creation ignores the limit. */
	init.attr = (struct ibv_srq_attr){ .max_wr = device.max_srq_wr, .max_sge = device.max_srq_sge, .srq_limit = 7 };
	struct ibv_srq *largest = ibv_create_srq(pd, &init);
	struct ibv_srq_attr attr;

	NEED(largest);
	CHECK(ibv_query_srq(largest, &attr) == 0);
	CHECK((int)attr.max_wr == device.max_srq_wr && (int)attr.max_sge == device.max_srq_sge && attr.srq_limit == 0);
	CHECK(ibv_destroy_srq(largest) == 0);
	CHECK(ibv_destroy_srq(largest) == EINVAL);
	CHECK(ibv_query_srq(largest, &attr) == EINVAL);

	CHECK_NULL(ibv_create_srq_ex(context, &ex), EINVAL); /* no protection domain */
	ex.comp_mask = 1 << 12;
	CHECK_NULL(ibv_create_srq_ex(context, &ex), EOPNOTSUPP);
	ex.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
	ex.srq_type = 99;
	CHECK_NULL(ibv_create_srq_ex(context, &ex), EINVAL);
	ex.srq_type = IBV_SRQT_TM;
	CHECK_NULL(ibv_create_srq_ex(context, &ex), EOPNOTSUPP);
	ex.srq_type = IBV_SRQT_BASIC;
	struct ibv_srq *basic = ibv_create_srq_ex(context, &ex);
	uint32_t number = 0;

	NEED(basic);
	CHECK(basic->context == context && basic->pd == pd);
	CHECK(ibv_get_srq_num(basic, &number) == 0 && number != 0);
	CHECK(ibv_destroy_srq(basic) == 0);
}

static void what_a_queue_takes(void)
{
	struct ibv_srq_init_attr init = { .srq_context = &srq, .attr = { .max_wr = 4, .max_sge = 2 } };
	struct ibv_srq_attr attr = {};

	srq = ibv_create_srq(pd, &init);
	NEED(srq);
	CHECK(srq->srq_context == &srq && srq->pd == pd && init.attr.max_wr == 4 && init.attr.max_sge == 2);
	CHECK(post_srq(0, 3) == EINVAL);
	CHECK(post_srq(0, -1) == EINVAL);
	for (int i = 0; i < 4; i++)
		CHECK(post_srq(i, 2) == 0);
	CHECK(post_srq(4, 1) == ENOMEM);
	attr = (struct ibv_srq_attr){ .max_wr = 2 };
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EINVAL); /* four are posted */
	attr = (struct ibv_srq_attr){ .max_wr = 8, .srq_limit = 9 };
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_modify_srq(srq, &attr, 4) == EINVAL);
	CHECK(ibv_modify_srq(srq, NULL, IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr == 4 && attr.max_sge == 2 && attr.srq_limit == 0);
	/* Rounded up, as in ibv_create_srq (rxe 6.12, rxe_queue_resize). */
	attr = (struct ibv_srq_attr){ .max_wr = 3 };
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == 0);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr == 4);
	attr = (struct ibv_srq_attr){ .max_wr = 5, .srq_limit = 3 };
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) == 0);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr == 8 && attr.srq_limit == 3);
	CHECK(ibv_query_srq(srq, NULL) == EINVAL);
}

static void a_queue_pair_takes_from_it(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = b.cq,
		.recv_cq = b.cq,
		.srq = srq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 99, .max_send_sge = 1, .max_recv_sge = 99 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_recv_wr wr = {}, *bad;
	struct end end = b;

	shared = ibv_create_qp(pd, &init);
	NEED(shared);
	CHECK(shared->srq == srq && init.cap.max_recv_wr == 0 && init.cap.max_recv_sge == 0);
	end.qp = shared;
	to_rts(&end, a.qp->qp_num);
	to_rts(&a, shared->qp_num);
	CHECK(ibv_post_recv(shared, &wr, &bad) == EINVAL && bad == &wr);
	memset(a.memory, 0x42, 128);
	CHECK(post(&a, IBV_WR_SEND, 9, 0, 128, &b, 0, IBV_SEND_SIGNALED) == 0);
	struct ibv_wc wc = next_wc(&b);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 0 && wc.byte_len == 128 && wc.qp_num == shared->qp_num);
	CHECK(b.memory[0] == 0x42 && b.memory[127] == 0x42 && b.memory[128] == 0);
	CHECK(next_wc(&a).wr_id == 9);
}

static void *acknowledge_late(void *unused)
{
	usleep(100000);
	acknowledged = 1;
	ibv_ack_async_event(&limit);
	return unused;
}

static void events_and_the_order_of_destruction(void)
{
	struct ibv_async_event event;
	struct ibv_srq_attr attr;
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	pthread_t thread;

	NEED(fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK) == 0);
	while (ibv_get_async_event(context, &event) == 0)
		ibv_ack_async_event(&event); /* COMM_EST, if any */
	CHECK(post(&a, IBV_WR_SEND, 10, 0, 1, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(next_wc(&b).wr_id == 1);
	CHECK(ibv_get_async_event(context, &limit) == 0);
	CHECK(limit.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && limit.element.srq == srq);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 0);
	CHECK(ibv_modify_qp(shared, &error, IBV_QP_STATE) == 0);
	CHECK(ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == shared);
	ibv_ack_async_event(&event);
	CHECK_MINUS(ibv_get_async_event(context, &event), EAGAIN);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_qp(shared) == 0);
	CHECK(post_srq(5, 1) == 0);
	NEED(pthread_create(&thread, NULL, acknowledge_late, NULL) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(acknowledged);
	pthread_join(thread, NULL);
	CHECK(post_srq(6, 1) == EINVAL);
}

int main(void)
{
	open_pd();
	a = make_end();
	b = make_end();
	what_creation_refuses();
	what_a_queue_takes();
	a_queue_pair_takes_from_it();
	events_and_the_order_of_destruction();
	return close_pair(&a, &b);
}
