/* Extended completion queues: every member that can be polled, the clock, moderation, resizing, overruns. */
#include "pair.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>

#define MINUTE UINT64_C(60000000000)

static struct end a, b;

static uint64_t clock_ns(clockid_t id)
{
	struct timespec now;

	clock_gettime(id, &now);
	return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint64_t raw_clock(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK | 1u << 9 };

	CHECK(ibv_query_rt_values_ex(context, &values) == 0);
	CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	return (uint64_t)values.raw_clock.tv_sec * 1000000000 + values.raw_clock.tv_nsec;
}

static void the_device_has_a_clock(void)
{
	struct ibv_device_attr_ex attr;
	struct ibv_values_ex values = { .comp_mask = 0, .raw_clock = { 7, 7 } };

	CHECK(ibv_query_device_ex(context, NULL, &attr) == 0);
	/* In kHz: a unit is a nanosecond. */
	CHECK(attr.hca_core_clock == 1000000 && attr.completion_timestamp_mask == UINT64_MAX);
	CHECK(attr.cq_mod_caps.max_cq_count == 65535 && attr.cq_mod_caps.max_cq_period == 65535);
	CHECK(ibv_query_rt_values_ex(context, &values) == 0);
	CHECK(values.comp_mask == 0 && values.raw_clock.tv_sec == 7 && values.raw_clock.tv_nsec == 7);
	uint64_t before = raw_clock(), now = clock_ns(CLOCK_MONOTONIC), after = raw_clock();

	CHECK(before <= now && now <= after);
}

/* Replaces the completion queue of pair.h in `end`. */
static void replace_queue(struct end *end, struct ibv_cq_init_attr_ex *attr)
{
	end->cq_ex = ibv_create_cq_ex(context, attr);
	NEED(end->cq_ex);
	end->cq = ibv_cq_ex_to_cq(end->cq_ex);
	struct ibv_qp_init_attr init = {
		.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	end->qp = ibv_create_qp(pd, &init);
	NEED(end->qp);
}

static void start(struct end *end)
{
	alarm(20);
	while (ibv_start_poll(end->cq_ex, NULL) == ENOENT)
		;
	alarm(0);
}

static void every_member_is_there(void)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 16,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_CVLAN |
			    IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct end timed = b, sender = a;

	replace_queue(&timed, &attr);
	replace_queue(&sender, &attr);
	to_rts(&sender, timed.qp->qp_num);
	to_rts(&timed, sender.qp->qp_num);
	for (int i = 0; i < 3; i++)
		post_receive(&timed, 100 + i, 0, 64);
	uint64_t raw = raw_clock(), wall = clock_ns(CLOCK_REALTIME), last = 0, last_wall = 0;

	for (int i = 0; i < 3; i++)
		CHECK(post(&sender, IBV_WR_SEND_WITH_IMM, i, 0, 8 + i, &timed, 0, IBV_SEND_SIGNALED) == 0);
	struct ibv_cq_ex *cq = timed.cq_ex;
	int i = 0;

	while (i < 3) {
		start(&timed);
		do {
			CHECK(cq->status == IBV_WC_SUCCESS && cq->wr_id == 100u + i);
			CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RECV && ibv_wc_read_vendor_err(cq) == 0);
			CHECK(ibv_wc_read_byte_len(cq) == 8u + i && ibv_wc_read_imm_data(cq) == htobe32(0x11223344));
			CHECK(ibv_wc_read_qp_num(cq) == timed.qp->qp_num);
			CHECK(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM);
			CHECK(ibv_wc_read_slid(cq) == 0 && ibv_wc_read_sl(cq) == 0);
			CHECK(ibv_wc_read_dlid_path_bits(cq) == 0);
			CHECK(ibv_wc_read_cvlan(cq) == 0 && ibv_wc_read_flow_tag(cq) == 0);
			uint64_t at = ibv_wc_read_completion_ts(cq);
			uint64_t wall_at = ibv_wc_read_completion_wallclock_ns(cq);

			CHECK(at >= raw && at <= raw_clock() && at >= last);
			/* The wall clock may be stepped, but hardly by a minute during a test. */
			CHECK(wall_at + MINUTE > wall && wall_at < clock_ns(CLOCK_REALTIME) + MINUTE);
			/* A second read returns the same value, which is not below that of the previous completion. */
			CHECK(ibv_wc_read_completion_wallclock_ns(cq) == wall_at && wall_at >= last_wall);
			last_wall = wall_at;
			last = at;
			i++;
		} while (ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
	CHECK(ibv_destroy_qp(timed.qp) == 0 && ibv_destroy_qp(sender.qp) == 0);
	CHECK(ibv_destroy_cq(timed.cq) == 0 && ibv_destroy_cq(sender.cq) == 0);
}

/* Sends `count` messages from a to b, and polls their completions at the sender. */
static void deliver(int count, unsigned int flags)
{
	for (int i = 0; i < count; i++) {
		post_receive(&b, i, 0, 64);
		CHECK(post(&a, IBV_WR_SEND, i, 0, 8, &b, 0, IBV_SEND_SIGNALED | flags) == 0);
		CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	}
}

static int event_within(int milliseconds)
{
	struct pollfd fd = { .fd = b.channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *user;

	if (poll(&fd, 1, milliseconds) != 1)
		return 0;
	CHECK(ibv_get_cq_event(b.channel, &cq, &user) == 0 && cq == b.cq && user == &context);
	ibv_ack_cq_events(cq, 1);
	return 1;
}

static void drain(int count)
{
	while (count--)
		CHECK(next_wc(&b).status == IBV_WC_SUCCESS);
}

static void moderate(uint16_t count, uint16_t period)
{
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { count, period } };

	CHECK(ibv_modify_cq(b.cq, &attr) == 0);
}

static void events_wait_for_company(void)
{
	struct ibv_modify_cq_attr attr = { .attr_mask = 1u << 5 };
	struct ibv_wc wc;

	CHECK(ibv_modify_cq(b.cq, &attr) == EINVAL);
	CHECK(verbs_get_ctx(context)->modify_cq(b.cq, NULL) == EINVAL);
	CHECK(verbs_get_ctx(context)->modify_cq(NULL, &attr) == EINVAL);

	/* By count: the third completion raises the event. Polling returns each at once. */
	moderate(3, 65535);
	CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
	uint64_t from = clock_ns(CLOCK_MONOTONIC);

	deliver(2, 0);
	int early = event_within(0);

	/* If the machine stalled for the period, the event was due. */
	CHECK(!early || clock_ns(CLOCK_MONOTONIC) - from >= 65000000);
	drain(1);
	if (!early) {
		deliver(1, 0);
		CHECK(event_within(5000));
		drain(2);
	} else {
		drain(1);
	}
	CHECK(ibv_poll_cq(b.cq, 1, &wc) == 0);

	/* By time: a single completion after 20 ms. */
	moderate(1000, 20000);
	CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
	from = clock_ns(CLOCK_MONOTONIC);
	deliver(1, 0);
	CHECK(event_within(5000));
	CHECK(clock_ns(CLOCK_MONOTONIC) - from >= 20000000);
	CHECK(!event_within(0));
	drain(1);

	/* No event without a request. Turning moderation off raises the delayed one. */
	deliver(1, 0);
	CHECK(!event_within(50));
	drain(1);
	moderate(1000, 65535);
	CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
	deliver(1, 0);
	moderate(0, 0);
	CHECK(event_within(5000));
	drain(1);
}

static void only_solicited_ones(void)
{
	CHECK(ibv_req_notify_cq(b.cq, 1) == 0);
	deliver(1, 0);
	CHECK(!event_within(20));
	deliver(1, IBV_SEND_SOLICITED);
	CHECK(event_within(5000));
	deliver(1, IBV_SEND_SOLICITED);
	CHECK(!event_within(20));
	/* The stronger request remains. */
	CHECK(ibv_req_notify_cq(b.cq, 0) == 0 && ibv_req_notify_cq(b.cq, 1) == 0);
	deliver(1, 0);
	CHECK(event_within(5000));
	drain(4);
}

static volatile int resizing;

static void *resize(void *unused)
{
	for (int i = 0; resizing; i++) {
		int refused = ibv_resize_cq(b.cq, 8 + i % 64 * 16);

		/* A size below the present contents is refused and changes nothing. */
		CHECK(refused == 0 || refused == EINVAL);
	}
	return unused;
}

static void resized_under_load(void)
{
	pthread_t thread;

	resizing = 1;
	NEED(pthread_create(&thread, NULL, resize, NULL) == 0);
	for (int round = 0; round < 500; round++) {
		for (int i = 0; i < 8; i++)
			post_receive(&b, round * 8 + i, 0, 64);
		for (int i = 0; i < 8; i++)
			CHECK(post(&a, IBV_WR_SEND, i, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
		for (int i = 0; i < 8; i++)
			CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
		for (int i = 0; i < 8; i++) {
			struct ibv_wc wc = next_wc(&b);

			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)round * 8 + i);
		}
		if (failures)
			break;
	}
	resizing = 0;
	pthread_join(thread, NULL);
	deliver(3, 0);
	CHECK(ibv_resize_cq(b.cq, 2) == EINVAL);
	drain(3);
	CHECK(ibv_resize_cq(b.cq, 64) == 0 && b.cq->cqe >= 64);
}

/* New completions replace the oldest, and the queue stays usable. */
static void overruns_can_be_ignored(void)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 2, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN | IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
	};
	struct end end = {};
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_recv_wr wr, *bad;
	struct ibv_async_event event;

	replace_queue(&end, &attr);
	NEED(!ibv_modify_qp(end.qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	to.qp_state = IBV_QPS_ERR;
	NEED(!ibv_modify_qp(end.qp, &to, IBV_QP_STATE));
	for (int i = 0; i < 5; i++) {
		wr = (struct ibv_recv_wr){ .wr_id = i };
		CHECK(ibv_post_recv(end.qp, &wr, &bad) == 0);
	}
	struct ibv_wc wc[5];
	int got = ibv_poll_cq(end.cq, 5, wc);

	CHECK(got == 2 && wc[0].wr_id == 3 && wc[1].wr_id == 4 && wc[1].status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_poll_cq(end.cq, 5, wc) == 0);
	NEED(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK_MINUS(ibv_get_async_event(context, &event), EAGAIN);
	CHECK(ibv_destroy_qp(end.qp) == 0 && ibv_destroy_cq(end.cq) == 0);
}

int main(void)
{
	open_pair(&a, &b);
	the_device_has_a_clock();
	every_member_is_there();
	events_wait_for_company();
	only_solicited_ones();
	resized_under_load();
	overruns_can_be_ignored();
	return close_pair(&a, &b);
}
