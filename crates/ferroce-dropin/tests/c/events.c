/* Descriptors and acknowledgements: non-blocking reads, edges, and blocking destroy calls. */
#include "pair.h"

#include <fcntl.h>
#include <pthread.h>

static struct end a, b;
static struct ibv_async_event overrun;
static volatile int acknowledged;

static void *acknowledge_late(void *unused)
{
	usleep(200000);
	acknowledged = 1;
	if (overrun.element.cq)
		ibv_ack_async_event(&overrun);
	else
		ibv_ack_cq_events(b.cq, 1);
	return unused;
}

static void empty_nonblocking_descriptors_do_not_block(void)
{
	struct ibv_async_event event;
	struct ibv_cq *cq;
	void *user;

	NEED(fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK_MINUS(ibv_get_async_event(context, &event), EAGAIN);
	NEED(fcntl(b.channel->fd, F_SETFL, fcntl(b.channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK_MINUS(ibv_get_cq_event(b.channel, &cq, &user), EAGAIN);
	CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
	CHECK_MINUS(ibv_get_cq_event(b.channel, &cq, &user), EAGAIN);
}

/* ibv_destroy_cq returns after every event was acknowledged, not before. */
static void destroying_a_queue_waits_for_its_events(void)
{
	struct pollfd fd = { .fd = b.channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *user;
	pthread_t thread;

	post_receive(&b, 1, 0, 64);
	CHECK(post(&a, IBV_WR_SEND, 2, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(poll(&fd, 1, 5000) == 1);
	CHECK(ibv_get_cq_event(b.channel, &cq, &user) == 0);
	CHECK_MINUS(ibv_get_cq_event(b.channel, &cq, &user), EAGAIN);
	CHECK(ibv_destroy_qp(b.qp) == 0);
	NEED(pthread_create(&thread, NULL, acknowledge_late, NULL) == 0);
	CHECK(ibv_destroy_cq(b.cq) == 0);
	CHECK(acknowledged);
	pthread_join(thread, NULL);
	CHECK(ibv_destroy_comp_channel(b.channel) == 0);
	CHECK(ibv_dereg_mr(b.mr) == 0);
}

/* An overrun raises an event and ends the queue; completions are never lost silently. */
static void overrunning_a_queue_is_an_event(void)
{
	struct ibv_cq *small = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = small, .recv_cq = small, .cap = { .max_send_wr = 8, .max_recv_wr = 8 }, .qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_recv_wr wr[4] = {}, *bad;
	struct ibv_async_event event;
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	pthread_t thread;

	NEED(small && qp);
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	for (int i = 0; i < 4; i++)
		wr[i].next = i < 3 ? &wr[i + 1] : NULL;
	CHECK(ibv_post_recv(qp, wr, &bad) == 0);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	while (poll(&fd, 1, overrun.element.cq ? 0 : 5000) == 1) {
		NEED(ibv_get_async_event(context, &event) == 0);
		if (event.event_type == IBV_EVENT_CQ_ERR) {
			CHECK(event.element.cq == small);
			overrun = event;
		} else {
			ibv_ack_async_event(&event);
		}
	}
	NEED(overrun.element.cq == small);
	struct ibv_wc wc[4];
	int got = ibv_poll_cq(small, 4, wc);

	CHECK(got == 1 && wc[0].status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_poll_cq(small, 4, wc) < 0);
	CHECK(ibv_destroy_qp(qp) == 0);
	acknowledged = 0;
	NEED(pthread_create(&thread, NULL, acknowledge_late, NULL) == 0);
	CHECK(ibv_destroy_cq(small) == 0);
	CHECK(acknowledged);
	pthread_join(thread, NULL);
}

int main(void)
{
	open_pair(&a, &b);
	empty_nonblocking_descriptors_do_not_block();
	destroying_a_queue_waits_for_its_events();
	overrunning_a_queue_is_an_event();
	free_end(&a);
	return close_pd();
}
