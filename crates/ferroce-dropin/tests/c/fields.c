/* What is taken, replaced and checked of the parameters of connections and of alternate paths: Linux 6.12
 * (`cma_connect_ib`, `cma_accept_ib`, `cm_format_req_event`, `cm_format_rep_event`, `ib_cm_init_qp_attr`,
 * `rxe_qp_from_attr`) and rdma-core 50 (`rdma_connect`, `rdma_accept`). */
#include "cm.h"

enum { PORT = 7198, MAX = RDMA_MAX_RESP_RES };

static struct rdma_event_channel *passive, *active;

static struct ibv_qp_init_attr init_attr(struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.srq = srq,
	};
	return init;
}

/* A row of the tables below; the depths are in the order `responder_resources`, `initiator_depth`. */
struct params {
	uint8_t resources, depth, flow, retries, rnr_retries;
};

static struct rdma_conn_param param_of(struct params params)
{
	struct rdma_conn_param param = {
		.responder_resources = params.resources,
		.initiator_depth = params.depth,
		.flow_control = params.flow,
		.retry_count = params.retries,
		.rnr_retry_count = params.rnr_retries,
	};
	return param;
}

static int is(const struct rdma_conn_param *told, struct params want)
{
	int same = told->responder_resources == want.resources && told->initiator_depth == want.depth &&
		   told->flow_control == want.flow && told->retry_count == want.retries &&
		   told->rnr_retry_count == want.rnr_retries;

	if (!same)
		fprintf(stderr, "told %d %d %d %d %d\n", told->responder_resources, told->initiator_depth,
			told->flow_control, told->retry_count, told->rnr_retry_count);
	return same;
}

/* What a connected queue pair has: reads of its own, reads of its peer, retries, retries after RNR NAKs,
 * and whether the peer may read. */
struct has {
	uint8_t reads, peer_reads, retries, rnr_retries, readable;
};

static int has(struct ibv_qp *qp, struct has want)
{
	const int with_reads = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	NEED(!ibv_query_qp(qp, &attr, 0, &init));
	int readable = (attr.qp_access_flags & with_reads) == with_reads;
	int same = attr.qp_state == IBV_QPS_RTS && attr.max_rd_atomic == want.reads &&
		   attr.max_dest_rd_atomic == want.peer_reads && attr.retry_cnt == want.retries &&
		   attr.rnr_retry == want.rnr_retries && readable == want.readable &&
		   attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE && !(attr.qp_access_flags & IBV_ACCESS_LOCAL_WRITE) &&
		   attr.min_rnr_timer == 0 && attr.path_mig_state == IBV_MIG_MIGRATED;

	if (!same)
		fprintf(stderr, "has %d %d %d %d, access %#x\n", attr.max_rd_atomic, attr.max_dest_rd_atomic,
			attr.retry_cnt, attr.rnr_retry, attr.qp_access_flags);
	return same;
}

static uint8_t timeout_of(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	NEED(!ibv_query_qp(qp, &attr, 0, &init));
	return attr.timeout;
}

static struct rdma_cm_id *listener(void)
{
	struct sockaddr_storage at = address_of("127.0.0.1", PORT);
	struct rdma_cm_id *id = NULL;

	NEED(!rdma_create_id(passive, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(id, (void *)&at) && !rdma_listen(id, 4));
	return id;
}

/* An id with a route and, if `init` is given, a queue pair. A `tos` or `timeout` of 0 is none. */
static struct rdma_cm_id *client(struct ibv_qp_init_attr *init, uint8_t tos, uint8_t timeout)
{
	struct rdma_cm_id *id = NULL;

	NEED(!rdma_create_id(active, &id, NULL, RDMA_PS_TCP));
	NEED(!tos || !rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)));
	NEED(!timeout || !rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)));
	NEED(!resolve_addr(id, "127.0.0.1", PORT));
	expect_event(active, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	NEED(!rdma_resolve_route(id, 2000));
	expect_event(active, id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	NEED(!init || !rdma_create_qp(id, NULL, init));
	return id;
}

static void end(struct rdma_cm_id *one, struct rdma_cm_id *other)
{
	struct rdma_cm_id *both[] = { one, other };

	for (int i = 0; i < 2; i++) {
		rdma_destroy_qp(both[i]);
		CHECK(!rdma_destroy_id(both[i]));
	}
}

static void depths_and_retries(void)
{
	static const struct {
		struct params connect, accept;
		int with_connect, with_accept;
		struct params request, response;
		struct has client, server;
	} rows[] = {
		/* Taken as they are; an event has the depths as its reader needs them. */
		{ { 3, 2, 1, 5, 6 }, { 2, 3, 0, 1, 4 }, 1, 1, { 2, 3, 1, 5, 6 }, { 3, 2, 0, 0, 4 },
		  { 2, 3, 5, 4, 1 }, { 3, 2, 5, 6, 1 } },
		{ { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 }, 1, 1, { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 },
		  { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 } },
		/* Retries are seven at most, and flow control is one bit. */
		{ { 1, 1, 2, 9, 200 }, { 1, 1, 3, 0, 8 }, 1, 1, { 1, 1, 0, 7, 7 }, { 1, 1, 1, 0, 7 },
		  { 1, 1, 7, 7, 1 }, { 1, 1, 7, 7, 1 } },
		/* The maximum is the device's in a request, and at most what the peer offers in an answer. */
		{ { MAX, MAX, 0, 1, 1 }, { MAX, MAX, 0, 0, 2 }, 1, 1, { 128, 128, 0, 1, 1 }, { 128, 128, 0, 0, 2 },
		  { 128, 128, 1, 2, 1 }, { 128, 128, 1, 1, 1 } },
		{ { 4, 1, 0, 1, 1 }, { MAX, MAX, 0, 0, 2 }, 1, 1, { 1, 4, 0, 1, 1 }, { 4, 1, 0, 0, 2 },
		  { 1, 4, 1, 2, 1 }, { 4, 1, 1, 1, 1 } },
		/* An answer may have more than was offered. */
		{ { 1, 1, 0, 1, 1 }, { 5, 6, 0, 0, 2 }, 1, 1, { 1, 1, 0, 1, 1 }, { 6, 5, 0, 0, 2 },
		  { 5, 6, 1, 2, 1 }, { 6, 5, 1, 1, 1 } },
		/* Whether the peer may read is what it was told: the REP's number, and the REQ's. */
		{ { 3, 0, 0, 1, 1 }, { 2, 0, 0, 0, 2 }, 1, 1, { 0, 3, 0, 1, 1 }, { 0, 2, 0, 0, 2 },
		  { 2, 0, 1, 2, 0 }, { 0, 2, 1, 1, 0 } },
		/* Programs that pass nothing. */
		{ { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 }, 0, 0, { 128, 128, 0, 7, 7 }, { 128, 128, 0, 0, 7 },
		  { 128, 128, 7, 7, 1 }, { 128, 128, 7, 7, 1 } },
		{ { 2, 3, 1, 1, 1 }, { 0, 0, 0, 0, 0 }, 1, 0, { 3, 2, 1, 1, 1 }, { 2, 3, 0, 0, 7 },
		  { 3, 2, 1, 7, 1 }, { 2, 3, 1, 1, 1 } },
	};
	struct rdma_cm_id *listen = listener();

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct rdma_conn_param connect = param_of(rows[i].connect), accept = param_of(rows[i].accept);
		struct ibv_qp_init_attr init = init_attr(NULL);
		struct rdma_cm_id *id = client(&init, 0, 0);
		int before = failures;

		NEED(!rdma_connect(id, rows[i].with_connect ? &connect : NULL));
		struct rdma_cm_event *event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_cm_id *server = event->id;

		CHECK(is(&event->param.conn, rows[i].request));
		CHECK(event->param.conn.qp_num == id->qp->qp_num && !event->param.conn.srq);
		CHECK(!rdma_ack_cm_event(event));
		init = init_attr(NULL);
		NEED(!rdma_create_qp(server, NULL, &init));
		NEED(!rdma_accept(server, rows[i].with_accept ? &accept : NULL));
		event = next_event(active, RDMA_CM_EVENT_ESTABLISHED);
		/* A REP says nothing of retries. */
		CHECK(is(&event->param.conn, rows[i].response));
		CHECK(event->param.conn.qp_num == server->qp->qp_num && !event->param.conn.srq);
		CHECK(!rdma_ack_cm_event(event));
		expect_event(passive, server, RDMA_CM_EVENT_ESTABLISHED, 0);
		CHECK(has(id->qp, rows[i].client) && has(server->qp, rows[i].server));
		if (failures > before)
			fprintf(stderr, "row %zu\n", i);
		end(id, server);
	}
	CHECK(!rdma_destroy_id(listen));
}

/* What an id says of its queue pair before it accepts. */
static void attributes(struct rdma_cm_id *server, uint8_t timeout)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask = 0;

	CHECK(!rdma_init_qp_attr(server, &attr, &mask));
	CHECK(mask == (IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT));
	CHECK(attr.port_num == 1 && attr.pkey_index == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!rdma_init_qp_attr(server, &attr, &mask));
	CHECK(mask == (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	CHECK(attr.max_dest_rd_atomic == 2 && attr.min_rnr_timer == 0 && attr.dest_qp_num == 0x345678);
	CHECK(attr.ah_attr.is_global && attr.ah_attr.port_num == 1 && attr.alt_port_num == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!rdma_init_qp_attr(server, &attr, &mask));
	CHECK(mask == (IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		       IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT));
	CHECK(attr.max_rd_atomic == 3 && attr.retry_cnt == 1 && attr.rnr_retry == 2 && attr.timeout == timeout);
}

/* Without a queue pair of the id's: the program's number, 24 bits of it, and its word on a shared receive
 * queue. */
static void numbers(void)
{
	struct rdma_cm_id *listen = listener(), *id = client(NULL, 96, 14);
	struct rdma_conn_param param = { .qp_num = 0x12345678, .srq = 5, .retry_count = 1, .rnr_retry_count = 2,
					 .responder_resources = 3, .initiator_depth = 2 };

	/* The path has the type of service and the time-out that were set. */
	CHECK(id->route.path_rec->traffic_class == 96 && id->route.path_rec->sl == 3);
	CHECK(id->route.path_rec->packet_life_time == 13);
	NEED(!rdma_connect(id, &param));
	struct rdma_cm_event *event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;

	CHECK(event->param.conn.qp_num == 0x345678 && event->param.conn.srq == 1);
	CHECK(server->route.path_rec->traffic_class == 96 && server->route.path_rec->sl == 3);
	CHECK(!rdma_ack_cm_event(event));
	attributes(server, 16);
	param.qp_num = 0xff000021;
	NEED(!rdma_accept(server, &param));
	event = next_event(active, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->param.conn.qp_num == 0x21 && event->param.conn.srq == 1);
	CHECK(!rdma_ack_cm_event(event));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	int mask = 0;

	CHECK(!rdma_init_qp_attr(id, &attr, &mask) && attr.timeout == 14);
	end(id, server);
	CHECK(!rdma_destroy_id(listen));
}

/* A shared receive queue is the queue pair's to say; the time-outs of both ends follow from the path. */
static void shared_queues(void)
{
	static const struct {
		uint8_t option, client, server;
	} rows[] = { { 0, 17, 17 }, { 14, 14, 16 }, { 20, 20, 20 }, { 31, 31, 31 } };
	struct rdma_cm_id *listen = listener();
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 1, .max_sge = 1 } };

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct rdma_conn_param param = { .retry_count = 1 };
		struct rdma_cm_id *id = client(NULL, 0, rows[i].option);
		struct ibv_srq *srq = ibv_create_srq(id->pd, &shared);
		struct ibv_qp_init_attr init = init_attr(srq);

		NEED(srq && !rdma_create_qp(id, NULL, &init));
		NEED(!rdma_connect(id, &param));
		struct rdma_cm_event *event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_cm_id *server = event->id;

		CHECK(event->param.conn.srq == 1);
		CHECK(!rdma_ack_cm_event(event));
		init = init_attr(NULL);
		NEED(!rdma_create_qp(server, NULL, &init));
		param.srq = 1;
		NEED(!rdma_accept(server, &param));
		event = next_event(active, RDMA_CM_EVENT_ESTABLISHED);
		CHECK(event->param.conn.srq == 0);
		CHECK(!rdma_ack_cm_event(event));
		expect_event(passive, server, RDMA_CM_EVENT_ESTABLISHED, 0);
		if (timeout_of(id->qp) != rows[i].client || timeout_of(server->qp) != rows[i].server)
			fprintf(stderr, "row %zu: time-outs %d, %d\n", i, timeout_of(id->qp), timeout_of(server->qp));
		CHECK(timeout_of(id->qp) == rows[i].client && timeout_of(server->qp) == rows[i].server);
		end(id, server);
		CHECK(!ibv_destroy_srq(srq));
	}
	CHECK(!rdma_destroy_id(listen));
}

/* Lengths of private data, with the header of the connection manager's in front of those of a request, and
 * depths that no device has. */
static void limits(void)
{
	static const uint8_t too_long[] = { 57, 92, 219, 220, 255 }, too_long_answers[] = { 197, 255 };
	struct rdma_cm_id *listen = listener(), *id = client(NULL, 0, 0);
	char data[256] = "data";
	struct rdma_conn_param param = { .private_data = data, .qp_num = 7 };

	for (size_t i = 0; i < sizeof(too_long); i++) {
		param.private_data_len = too_long[i];
		CHECK_MINUS(rdma_connect(id, &param), EINVAL);
	}
	param.private_data_len = 56;
	for (int depth = 129; depth < MAX; depth += 42) {
		param.responder_resources = depth;
		CHECK_MINUS(rdma_connect(id, &param), EINVAL);
		param.responder_resources = 0;
		param.initiator_depth = depth;
		CHECK_MINUS(rdma_connect(id, &param), EINVAL);
		param.initiator_depth = 0;
	}
	NEED(!rdma_connect(id, &param));
	struct rdma_cm_event *event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;

	CHECK(event->param.conn.private_data_len == 56);
	CHECK(!rdma_ack_cm_event(event));
	for (size_t i = 0; i < sizeof(too_long_answers); i++) {
		param.private_data_len = too_long_answers[i];
		CHECK_MINUS(rdma_accept(server, &param), EINVAL);
	}
	CHECK_MINUS(rdma_reject(server, data, 149), EINVAL);
	NEED(!rdma_reject(server, data, 148));
	event = next_event(active, RDMA_CM_EVENT_REJECTED);
	CHECK(event->param.conn.private_data_len == 148);
	CHECK(!rdma_ack_cm_event(event));
	end(id, server);
	CHECK(!rdma_destroy_id(listen));
}

/* RoCE has no alternate paths (`_ib_modify_qp`): all are refused, and nothing of them is kept. The state
 * of migration is the program's. */
static void alternate_paths(void)
{
	static const struct {
		uint8_t port, path_port, global, timeout;
	} rows[] = { { 1, 1, 1, 14 }, { 0, 0, 1, 14 }, { 3, 3, 1, 14 }, { 1, 2, 1, 14 }, { 1, 1, 0, 14 }, { 1, 1, 1, 40 } };
	static const uint8_t states[] = { IBV_MIG_MIGRATED, IBV_MIG_REARM, IBV_MIG_ARMED, 77 };
	const int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const int to_rts = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			   IBV_QP_MAX_QP_RD_ATOMIC;
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = init_attr(NULL);
	union ibv_gid gid;

	NEED(pd && cq && !ibv_query_gid(context, 1, 0, &gid));
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 }, now;

	NEED(qp && !ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 5,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid } },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		attr.alt_ah_attr = attr.ah_attr;
		attr.alt_ah_attr.is_global = rows[i].global;
		attr.alt_ah_attr.port_num = rows[i].path_port;
		attr.alt_port_num = rows[i].port;
		attr.alt_timeout = rows[i].timeout;
		attr.alt_pkey_index = i;
		CHECK(ibv_modify_qp(qp, &attr, to_rtr | IBV_QP_ALT_PATH) == EINVAL);
		NEED(!ibv_query_qp(qp, &now, 0, &init));
		CHECK(now.qp_state == IBV_QPS_INIT && !now.alt_port_num && !now.alt_timeout && !now.alt_pkey_index);
		CHECK(!now.alt_ah_attr.is_global && !now.alt_ah_attr.port_num);
	}
	/* Without its bit, an alternate path is not looked at. The state of migration has no place in this
	 * step. */
	CHECK(ibv_modify_qp(qp, &attr, to_rtr | IBV_QP_PATH_MIG_STATE) == EINVAL);
	NEED(!ibv_modify_qp(qp, &attr, to_rtr));
	attr.qp_state = IBV_QPS_RTS;
	attr.path_mig_state = IBV_MIG_ARMED;
	CHECK(ibv_modify_qp(qp, &attr, to_rts | IBV_QP_ALT_PATH) == EINVAL);
	NEED(!ibv_query_qp(qp, &now, 0, &init) && now.path_mig_state == IBV_MIG_MIGRATED);
	NEED(!ibv_modify_qp(qp, &attr, to_rts | IBV_QP_PATH_MIG_STATE));
	NEED(!ibv_query_qp(qp, &now, 0, &init) && now.path_mig_state == IBV_MIG_ARMED);
	for (size_t i = 0; i < sizeof(states); i++) {
		attr.path_mig_state = states[i];
		CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_PATH_MIG_STATE));
		NEED(!ibv_query_qp(qp, &now, 0, &init));
		CHECK(now.path_mig_state == states[i] && now.qp_state == IBV_QPS_RTS);
	}
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
}

int main(void)
{
	raise_lo();
	passive = rdma_create_event_channel();
	active = rdma_create_event_channel();
	NEED(passive && active);
	alternate_paths();
	depths_and_retries();
	numbers();
	shared_queues();
	limits();
	rdma_destroy_event_channel(passive);
	rdma_destroy_event_channel(active);
	return finish();
}
