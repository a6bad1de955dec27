/* Each asynchronous event, from its cause to its acknowledgement. Ports and devices follow network interfaces of this
 * program's own network namespace. */
#include "pair.h"

#include <fcntl.h>
#include <pthread.h>

static struct end a, b;

/* The next event of `from`, or -1 after the timeout. Port events must name the port; the caller checks the rest. */
static struct ibv_async_event event_of(struct ibv_context *from, int milliseconds)
{
	struct pollfd fd = { .fd = from->async_fd, .events = POLLIN };
	struct ibv_async_event event = { .event_type = -1 };

	if (poll(&fd, 1, milliseconds) == 1)
		NEED(ibv_get_async_event(from, &event) == 0);
	return event;
}

/* Reads events until one of the kind arrives; earlier ones must be of the kinds that `also` allows. */
static void expect_port(struct ibv_context *from, int kind, int also)
{
	for (;;) {
		struct ibv_async_event event = event_of(from, 10000);

		NEED((int)event.event_type != -1);
		CHECK(event.element.port_num == 1);
		CHECK((int)event.event_type == kind || (int)event.event_type == also);
		ibv_ack_async_event(&event);
		if ((int)event.event_type == kind || failures)
			return;
	}
}

static void expect_qp(int kind, struct ibv_qp *qp)
{
	struct ibv_async_event event = event_of(context, 5000);

	CHECK((int)event.event_type == kind);
	if ((int)event.event_type != kind)
		fprintf(stderr, "got %s instead of %s\n", ibv_event_type_str(event.event_type), ibv_event_type_str(kind));
	CHECK(event.element.qp == qp && event.element.qp->qp_context == &pd);
	ibv_ack_async_event(&event);
}

static void nothing_more(struct ibv_context *from)
{
	struct ibv_async_event event;

	CHECK_MINUS(ibv_get_async_event(from, &event), EAGAIN);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp, int *draining)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	if (draining)
		*draining = attr.sq_draining;
	return attr.qp_state;
}

static void pair(void)
{
	make_pair(&a, &b);
}

static void unpair(void)
{
	free_end(&a);
	free_end(&b);
	nothing_more(context);
}

/* The first request in RTR raises COMM_EST once; in RTS none does. */
static void communication_established(void)
{
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = 5, .timeout = 12, .retry_cnt = 7, .rnr_retry = 7 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	a = make_end();
	b = make_end();
	NEED(!ibv_modify_qp(b.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = a.qp->qp_num, .rq_psn = 0x123456,
		.min_rnr_timer = 1, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } },
	};
	NEED(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	NEED(!ibv_modify_qp(b.qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	to_rts(&a, b.qp->qp_num);
	nothing_more(context);
	for (int i = 0; i < 3; i++) {
		CHECK(post(&a, IBV_WR_RDMA_WRITE, i, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
		CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	}
	expect_qp(IBV_EVENT_COMM_EST, b.qp);
	nothing_more(context);
	NEED(!ibv_modify_qp(b.qp, &rts,
			    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_MAX_QP_RD_ATOMIC));
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 9, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	unpair();
}

/* SQD: outstanding requests complete, posted ones wait; the event follows the last completion. */
static void send_queue_drained(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_wc wc;
	int draining = -1;

	pair();
	/* No receive is posted: the message gets an RNR NAK and stays outstanding. */
	CHECK(post(&a, IBV_WR_SEND, 1, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
	CHECK(a.qp->state == IBV_QPS_SQD && state_of(a.qp, &draining) == IBV_QPS_SQD && draining == 1);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == EINVAL);
	nothing_more(context);
	CHECK(post(&a, IBV_WR_SEND, 2, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
	post_receive(&b, 10, 0, 64);
	post_receive(&b, 11, 0, 64);
	wc = next_wc(&a);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1);
	expect_qp(IBV_EVENT_SQ_DRAINED, a.qp);
	CHECK(state_of(a.qp, &draining) == IBV_QPS_SQD && draining == 0);
	CHECK(next_wc(&b).wr_id == 10);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
	CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
	wc = next_wc(&a);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 2);
	CHECK(next_wc(&b).wr_id == 11);

	/* No event if it was not requested. Without outstanding requests the queue is drained at once. */
	attr.qp_state = IBV_QPS_SQD;
	attr.en_sqd_async_notify = 0;
	CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
	CHECK(state_of(a.qp, &draining) == IBV_QPS_SQD && draining == 0);
	unpair();
}

/* An error of the peer raises an event at the responder. */
static void refused_requests(void)
{
	struct ibv_wc wc;

	pair();
	b.mr->rkey ^= 0x100;
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
	b.mr->rkey ^= 0x100;
	wc = next_wc(&a);
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR);
	expect_qp(IBV_EVENT_QP_ACCESS_ERR, b.qp);
	CHECK(state_of(a.qp, NULL) == IBV_QPS_ERR && state_of(b.qp, NULL) == IBV_QPS_ERR);
	unpair();

	pair();
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_READ };

	CHECK(ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS) == 0);
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 1, 0, 64, &b, 0, IBV_SEND_SIGNALED) == 0);
	wc = next_wc(&a);
	CHECK(wc.status == IBV_WC_REM_INV_REQ_ERR || wc.status == IBV_WC_REM_ACCESS_ERR);
	expect_qp(wc.status == IBV_WC_REM_INV_REQ_ERR ? IBV_EVENT_QP_REQ_ERR : IBV_EVENT_QP_ACCESS_ERR, b.qp);
	unpair();

	/* A request that consumes a receive completes it with the error, and raises no event. */
	pair();
	post_receive(&b, 1, 0, 4);
	CHECK(post(&a, IBV_WR_SEND, 1, 0, 64, &b, 0, IBV_SEND_SIGNALED) == 0);
	wc = next_wc(&a);
	CHECK(wc.status == IBV_WC_REM_INV_REQ_ERR);
	CHECK(next_wc(&b).status == IBV_WC_LOC_LEN_ERR);
	unpair();
}

static struct ibv_async_event late;
static volatile int acknowledged;

static void *acknowledge_late(void *unused)
{
	usleep(100000);
	acknowledged = 1;
	ibv_ack_async_event(&late);
	return unused;
}

static void spoil(void)
{
	pair();
	b.mr->rkey ^= 0x100;
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
	b.mr->rkey ^= 0x100;
	CHECK(next_wc(&a).status == IBV_WC_REM_ACCESS_ERR);
}

/* Destroying a queue pair waits for acknowledgements of read events, and discards unread ones. */
static void destroyed_with_its_events(void)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	pthread_t thread;

	spoil();
	CHECK(poll(&fd, 1, 5000) == 1);
	unpair();
	CHECK(poll(&fd, 1, 0) == 0);

	spoil();
	late = event_of(context, 5000);
	NEED(late.event_type == IBV_EVENT_QP_ACCESS_ERR);
	NEED(pthread_create(&thread, NULL, acknowledge_late, NULL) == 0);
	unpair();
	CHECK(acknowledged);
	pthread_join(thread, NULL);
}

/* The first device with (or, if `same` is 0, without) this name. */
static struct ibv_context *open_named(const char *name, int same)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *found = NULL;

	NEED(list);
	for (int i = 0; list[i] && !found; i++)
		if ((strcmp(ibv_get_device_name(list[i]), name) == 0) == same)
			found = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	NEED(found);
	return found;
}

static void run(const char *command)
{
	NEED(system(command) == 0);
}

static int port_state(struct ibv_context *of)
{
	struct ibv_port_attr port;

	CHECK(ibv_query_port(of, 1, &port) == 0);
	return port.state;
}

/* Every context gets the events of its port, and a later query agrees with them. */
static void ports_follow_their_interface(void)
{
	struct ibv_context *other = open_named("fr0", 1);
	union ibv_gid gid;
	struct ibv_gid_entry entries[64];
	ssize_t before = ibv_query_gid_table(context, entries, 64, 0);

	NEED(fcntl(other->async_fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(before >= 2 && port_state(context) == IBV_PORT_ACTIVE);
	run("ip addr add 10.83.0.1/32 dev lo");
	expect_port(context, IBV_EVENT_GID_CHANGE, -1);
	expect_port(other, IBV_EVENT_GID_CHANGE, -1);
	CHECK(ibv_query_gid_table(context, entries, 64, 0) == before + 1);
	struct ibv_gid_entry *last = &entries[before];

	CHECK(last->gid_type == IBV_GID_TYPE_ROCE_V2 && last->port_num == 1 && last->ndev_ifindex == if_nametoindex("lo"));
	CHECK(!memcmp(last->gid.raw + 10, "\xff\xff\x0a\x53\x00\x01", 6));
	struct ibv_gid_entry same;

	CHECK(ibv_query_gid_ex(context, 1, last->gid_index, &same, 0) == 0 && !memcmp(&same, last, sizeof(same)));
	CHECK(ibv_query_gid(context, 1, last->gid_index, &gid) == 0 && !memcmp(&gid, &last->gid, 16));
	run("ip addr del 10.83.0.1/32 dev lo");
	expect_port(context, IBV_EVENT_GID_CHANGE, -1);
	expect_port(other, IBV_EVENT_GID_CHANGE, -1);
	CHECK(ibv_query_gid_ex(context, 1, last->gid_index, &same, 0) == ENODATA);
	CHECK(ibv_query_gid(context, 1, last->gid_index, &gid) == 0 && !gid.global.interface_id);

	run("ip link set lo down");
	expect_port(context, IBV_EVENT_PORT_ERR, IBV_EVENT_GID_CHANGE);
	expect_port(other, IBV_EVENT_PORT_ERR, IBV_EVENT_GID_CHANGE);
	CHECK(port_state(context) == IBV_PORT_DOWN && port_state(other) == IBV_PORT_DOWN);
	run("ip link set lo up");
	expect_port(context, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE);
	expect_port(other, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE);
	CHECK(port_state(context) == IBV_PORT_ACTIVE);
	/* Unread port events do not prevent closing. */
	CHECK(ibv_close_device(other) == 0);
}

/* A device whose interface is deleted: the event, and EIO from every call except closing. */
static void devices_may_go(void)
{
	struct ibv_context *gone = open_named("fr0", 0);
	struct ibv_port_attr port;
	struct ibv_async_event event;

	NEED(fcntl(gone->async_fd, F_SETFL, O_NONBLOCK) == 0);

	/* Neither has a wire, whatever Linux reports for a veth: four lanes of 25 Gb/s. */
	CHECK(ibv_query_port(gone, 1, &port) == 0);
	CHECK(port.active_width == 2 && port.active_speed == 32);
	CHECK(ibv_query_port(context, 1, &port) == 0);
	CHECK(port.active_width == 2 && port.active_speed == 32);

	struct ibv_pd *domain = ibv_alloc_pd(gone);
	struct ibv_cq *cq = ibv_create_cq(gone, 4, NULL, NULL, 0);
	struct ibv_wc wc;

	NEED(domain && cq);
	run("ip link del d0");
	do {
		event = event_of(gone, 10000);
		NEED((int)event.event_type != -1);
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_DEVICE_FATAL);
	CHECK_NULL(ibv_alloc_pd(gone), EIO);
	CHECK(ibv_query_port(gone, 1, &port) == EIO);
	CHECK(ibv_dealloc_pd(domain) == EIO);
	CHECK(ibv_poll_cq(cq, 1, &wc) < 0);
	CHECK(ibv_close_device(gone) == 0);
	/* Other devices still work. */
	pair();
	CHECK(post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &b, 0, IBV_SEND_SIGNALED) == 0);
	CHECK(next_wc(&a).status == IBV_WC_SUCCESS);
	free_end(&a);
	free_end(&b);
}

int main(void)
{
	int veth = !system("ip link add d0 type veth peer name d1 && ip addr add 10.84.0.1/24 dev d0 && "
			   "ip link set d0 up && ip link set d1 up");

	if (veth)
		setenv("FERROCE_NETDEV", "d0", 1);
	/* Lists both devices. */
	setenv("FERROCE_LOOPBACK", "1", 1);
	raise_lo();

	context = open_named("fr0", 1);
	pd = ibv_alloc_pd(context);
	NEED(pd);
	NEED(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	communication_established();
	send_queue_drained();
	refused_requests();
	destroyed_with_its_events();
	ports_follow_their_interface();
	if (veth)
		devices_may_go();
	else
		fprintf(stderr, "no veth can be made here: devices that go are not tried\n");
	return close_pd();
}
