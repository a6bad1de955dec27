/* Connections within one process: ports, requests, answers, data, and how they end. */
#include "cm.h"

#include <pthread.h>

static struct ibv_qp_init_attr init_attr(void)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	return init;
}

static struct rdma_cm_id *listener(struct rdma_event_channel *channel, const char *text, int port)
{
	struct sockaddr_storage at = address_of(text, port);
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(channel, &id, &failures, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(id, (void *)&at) == 0);
	NEED(rdma_listen(id, 4) == 0);
	return id;
}

static void ports(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage any = address_of("0.0.0.0", 0), at, foreign = address_of("10.9.8.7", 0);
	struct rdma_cm_id *first = NULL, *second = NULL;

	NEED(channel);
	NEED(rdma_create_id(channel, &first, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP) == 0);
	CHECK_MINUS(rdma_bind_addr(first, NULL), EINVAL);
	CHECK_MINUS(rdma_bind_addr(NULL, (void *)&any), EINVAL);
	CHECK_MINUS(rdma_bind_addr(first, (void *)&foreign), EADDRNOTAVAIL);
	CHECK(rdma_bind_addr(first, (void *)&any) == 0);
	CHECK(rdma_get_src_port(first) != 0 && !first->verbs);
	CHECK_MINUS(rdma_bind_addr(first, (void *)&any), EINVAL);
	at = address_of("127.0.0.1", ntohs(rdma_get_src_port(first)));
	/* A wildcard on either side is another error than equal addresses (Linux 6.12, `cma_check_port`). */
	CHECK_MINUS(rdma_bind_addr(second, (void *)&at), EADDRNOTAVAIL);
	CHECK(rdma_destroy_id(first) == 0);
	CHECK(rdma_bind_addr(second, (void *)&at) == 0);
	NEED(rdma_create_id(channel, &first, NULL, RDMA_PS_TCP) == 0);
	CHECK_MINUS(rdma_bind_addr(first, (void *)&at), EADDRINUSE);
	((struct sockaddr_in *)&any)->sin_port = rdma_get_src_port(second);
	CHECK_MINUS(rdma_bind_addr(first, (void *)&any), EADDRNOTAVAIL);
	CHECK(rdma_destroy_id(first) == 0);
	CHECK(second->verbs && second->port_num == 1 && second->pd);
	CHECK(rdma_listen(second, 0) == 0);
	CHECK_MINUS(rdma_listen(second, 0), EINVAL);
	CHECK_MINUS(rdma_connect(second, NULL), EINVAL);
	CHECK_MINUS(rdma_accept(second, NULL), EINVAL);
	CHECK_MINUS(rdma_reject(second, NULL, 0), EINVAL);
	CHECK_MINUS(rdma_disconnect(second), EINVAL);
	CHECK_MINUS(rdma_establish(second), EINVAL);
	CHECK(rdma_destroy_id(second) == 0);
	CHECK_MINUS(rdma_listen(NULL, 1), EINVAL);
	CHECK_MINUS(rdma_connect(NULL, NULL), EINVAL);
	CHECK_MINUS(rdma_accept(NULL, NULL), EINVAL);
	CHECK_MINUS(rdma_reject(NULL, NULL, 0), EINVAL);
	CHECK_MINUS(rdma_disconnect(NULL), EINVAL);
	CHECK_MINUS(rdma_establish(NULL), EINVAL);
	CHECK_MINUS(rdma_notify(NULL, IBV_EVENT_COMM_EST), EINVAL);
	CHECK_MINUS(rdma_get_request(NULL, &first), EINVAL);
	rdma_destroy_event_channel(channel);
}

static struct rdma_cm_id *client_of(struct rdma_event_channel *channel, const char *text, int port)
{
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(resolve_addr(id, text, port) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	NEED(rdma_resolve_route(id, 2000) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return id;
}

/* Both ends use events, with private data in both directions and a message. */
static void both_ends(const char *bound, const char *text, int port)
{
	struct rdma_event_channel *passive = rdma_create_event_channel(), *active = rdma_create_event_channel();
	char hello[56] = "hello", answer[196] = "answer", buffer[2][64] = {};
	struct rdma_conn_param param = { .private_data = hello, .private_data_len = sizeof(hello),
					 .responder_resources = 3, .initiator_depth = 2, .retry_count = 5,
					 .rnr_retry_count = 6, .flow_control = 1 };
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;

	NEED(passive && active);
	struct rdma_cm_id *listen = listener(passive, bound, port);
	struct rdma_cm_id *client = client_of(active, text, port);

	CHECK(rdma_get_src_port(client) != 0);
	init = init_attr();
	NEED(rdma_create_qp(client, NULL, &init) == 0);
	param.private_data_len = 57;
	CHECK_MINUS(rdma_connect(client, &param), EINVAL);
	param.private_data_len = 56;
	NEED(rdma_connect(client, &param) == 0);
	CHECK_MINUS(rdma_connect(client, &param), EINVAL);

	struct rdma_cm_event *event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;

	CHECK(event->listen_id == listen && event->status == 0 && server != listen);
	CHECK(server->context == &failures && server->channel == passive && server->ps == RDMA_PS_TCP);
	CHECK(server->verbs == client->verbs && server->pd && server->port_num == 1);
	CHECK(event->param.conn.private_data_len == 56 && memcmp(event->param.conn.private_data, hello, 56) == 0);
	CHECK(event->param.conn.initiator_depth == 3 && event->param.conn.responder_resources == 2);
	CHECK(event->param.conn.retry_count == 5 && event->param.conn.rnr_retry_count == 6);
	CHECK(event->param.conn.qp_num == client->qp->qp_num && event->param.conn.flow_control == 1);
	CHECK(rdma_get_src_port(server) == htons(port) && rdma_get_dst_port(server) == rdma_get_src_port(client));
	CHECK(rdma_get_local_addr(server)->sa_family == rdma_get_peer_addr(client)->sa_family);
	NEED(server->route.num_paths == 1 && server->route.path_rec);
	init = init_attr();
	NEED(rdma_create_qp(server, NULL, &init) == 0);
	struct ibv_mr *mr = ibv_reg_mr(server->pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);

	NEED(mr);
	NEED(rdma_post_recv(server, NULL, buffer[1], 64, mr) == 0);
	param = (struct rdma_conn_param){ .private_data = answer, .private_data_len = 196,
					  .responder_resources = 2, .initiator_depth = 3, .rnr_retry_count = 4 };
	NEED(rdma_accept(server, &param) == 0);
	CHECK_MINUS(rdma_accept(server, &param), EINVAL);
	CHECK(rdma_ack_cm_event(event) == 0);

	event = next_event(active, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == client && event->listen_id == NULL && event->status == 0);
	CHECK(event->param.conn.private_data_len == 196 && memcmp(event->param.conn.private_data, answer, 196) == 0);
	CHECK(event->param.conn.qp_num == server->qp->qp_num && event->param.conn.responder_resources == 3);
	CHECK(event->param.conn.initiator_depth == 2);
	CHECK(rdma_ack_cm_event(event) == 0);
	expect_event(passive, server, RDMA_CM_EVENT_ESTABLISHED, 0);

	NEED(ibv_query_qp(client->qp, &attr, 0, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.max_rd_atomic == 2 && attr.max_dest_rd_atomic == 3);
	CHECK(attr.rnr_retry == 4 && attr.retry_cnt == 5 && attr.dest_qp_num == server->qp->qp_num);
	NEED(ibv_query_qp(server->qp, &attr, 0, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.max_rd_atomic == 3 && attr.max_dest_rd_atomic == 2);
	CHECK(attr.rnr_retry == 6 && attr.dest_qp_num == client->qp->qp_num && attr.timeout == 17);

	strcpy(buffer[0], "over the connection");
	NEED(rdma_post_send(client, NULL, buffer[0], 64, mr, 0) == 0);
	NEED(rdma_get_recv_comp(server, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS && strcmp(buffer[1], "over the connection") == 0);
	NEED(rdma_get_send_comp(client, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS);

	NEED(rdma_disconnect(client) == 0);
	expect_event(passive, server, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(rdma_disconnect(server) == 0);
	expect_event(active, client, RDMA_CM_EVENT_DISCONNECTED, 0);
	NEED(ibv_query_qp(client->qp, &attr, 0, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_ERR);
	CHECK(ibv_dereg_mr(mr) == 0);
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	CHECK(rdma_destroy_id(client) == 0 && rdma_destroy_id(server) == 0 && rdma_destroy_id(listen) == 0);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

/* With links, a loopback address binds an id to no device, as in Linux. libfabric finds its providers this way: it binds a
 * passive id to the address of "localhost", and if the id then has a device, keeps only that one. */
static void loopback_is_no_device(const char *text, const char *port)
{
	struct rdma_event_channel *passive = rdma_create_event_channel(), *active = rdma_create_event_channel();
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *info = NULL;
	struct rdma_cm_id *id = NULL, *listen = NULL, *client = NULL;
	struct ibv_qp_init_attr init = init_attr();
	struct rdma_cm_event *event;

	NEED(passive && active && rdma_getaddrinfo(text, port, &hints, &info) == 0);
	NEED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(id, info->ai_src_addr) == 0);
	CHECK(!id->verbs && !id->pd && !id->qp);
	/* The address is kept. */
	CHECK(rdma_get_local_addr(id)->sa_family == info->ai_src_addr->sa_family);
	CHECK(memcmp(rdma_get_local_addr(id), info->ai_src_addr, info->ai_src_len) == 0);
	CHECK(rdma_get_src_port(id) == htons(atoi(port)));
	CHECK_MINUS(rdma_create_qp(id, NULL, &init), EINVAL);
	/* Resolving starts from that address and port. */
	NEED(resolve_addr(id, text, atoi(port)) == 0);
	CHECK(id->verbs && id->pd && id->port_num == 1);
	CHECK(rdma_get_src_port(id) == htons(atoi(port)));
	CHECK(rdma_create_qp(id, NULL, &init) == 0);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);

	/* A passive endpoint has no device either; its requests have one. */
	NEED(rdma_create_ep(&listen, info, NULL, NULL) == 0);
	CHECK(!listen->verbs);
	NEED(rdma_migrate_id(listen, passive) == 0 && rdma_listen(listen, 1) == 0);
	CHECK(!listen->verbs);
	client = client_of(active, text, atoi(port));
	init = init_attr();
	NEED(rdma_create_qp(client, NULL, &init) == 0 && rdma_connect(client, NULL) == 0);
	event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == listen && !listen->verbs);
	CHECK(event->id->verbs && event->id->verbs == client->verbs && event->id->pd);
	NEED(rdma_reject(event->id, NULL, 0) == 0);
	id = event->id;
	CHECK(rdma_ack_cm_event(event) == 0 && rdma_destroy_id(id) == 0);
	CHECK(rdma_ack_cm_event(next_event(active, RDMA_CM_EVENT_REJECTED)) == 0);
	rdma_destroy_qp(client);
	CHECK(rdma_destroy_id(client) == 0);
	rdma_destroy_ep(listen);
	rdma_freeaddrinfo(info);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

/* Any address of 127.0.0.0/8, also one of no device. */
static void all_of_loopback(void)
{
	struct sockaddr_storage at = address_of("127.1.2.3", 0);
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, (void *)&at) == 0 && !id->verbs && rdma_get_src_port(id) != 0);
	CHECK(rdma_listen(id, 1) == 0);
	CHECK(rdma_destroy_id(id) == 0);
}

/* NULL with a length is no private data, as in rdma-core. */
static void no_private_data(void)
{
	struct rdma_event_channel *passive = rdma_create_event_channel(), *active = rdma_create_event_channel();
	struct rdma_conn_param param = { .private_data = NULL, .private_data_len = 255, .retry_count = 1 };
	static const char nothing[196];

	NEED(passive && active);
	struct rdma_cm_id *listen = listener(passive, "127.0.0.1", 7186);

	for (int agree = 0; agree < 2; agree++) {
		struct rdma_cm_id *client = client_of(active, "127.0.0.1", 7186);
		struct ibv_qp_init_attr init = init_attr();

		NEED(rdma_create_qp(client, NULL, &init) == 0);
		NEED(rdma_connect(client, &param) == 0);
		struct rdma_cm_event *event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_cm_id *server = event->id;

		CHECK(event->param.conn.private_data_len == 56 && !memcmp(event->param.conn.private_data, nothing, 56));
		CHECK(rdma_ack_cm_event(event) == 0);
		init = init_attr();
		NEED(rdma_create_qp(server, NULL, &init) == 0);
		NEED((agree ? rdma_accept(server, &param) : rdma_reject(server, NULL, 255)) == 0);
		event = next_event(active, agree ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_REJECTED);
		int length = agree ? 196 : 148;

		CHECK(event->param.conn.private_data_len == length);
		CHECK(!memcmp(event->param.conn.private_data, nothing, length));
		CHECK(rdma_ack_cm_event(event) == 0);
		if (agree)
			expect_event(passive, server, RDMA_CM_EVENT_ESTABLISHED, 0);
		rdma_destroy_qp(client);
		rdma_destroy_qp(server);
		CHECK(rdma_destroy_id(client) == 0 && rdma_destroy_id(server) == 0);
	}
	CHECK(rdma_destroy_id(listen) == 0);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

/* Rejected by a program, for lack of a listener, and by the end of a listener. */
static void refusals(void)
{
	struct rdma_event_channel *passive = rdma_create_event_channel(), *active = rdma_create_event_channel();
	struct ibv_qp_init_attr init = init_attr();
	char why[148] = "why not";

	NEED(passive && active);
	struct rdma_cm_id *listen = listener(passive, "127.0.0.1", 7180);
	struct rdma_cm_id *client = client_of(active, "127.0.0.1", 7180);

	NEED(rdma_create_qp(client, NULL, &init) == 0);
	NEED(rdma_connect(client, NULL) == 0);
	struct rdma_cm_event *event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;

	/* RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH at either end. */
	CHECK(event->param.conn.responder_resources == 128 && event->param.conn.initiator_depth == 128);
	NEED(rdma_reject(server, why, sizeof(why)) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(server) == 0);
	event = next_event(active, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28 && event->param.conn.private_data_len == 148);
	CHECK(memcmp(event->param.conn.private_data, why, 148) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	rdma_destroy_qp(client);
	CHECK(rdma_destroy_id(client) == 0);

	/* The end of the listener rejects requests that were not fetched. */
	client = client_of(active, "127.0.0.1", 7180);
	NEED(rdma_connect(client, NULL) == 0);
	usleep(50000);
	CHECK(rdma_destroy_id(listen) == 0);
	event = next_event(active, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status > 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(client) == 0);

	client = client_of(active, "127.0.0.1", 7180);
	NEED(rdma_connect(client, NULL) == 0);
	event = next_event(active, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 8);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(client) == 0);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

static void set_up(struct rdma_cm_id *id, struct ibv_qp *qp)
{
	for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		struct ibv_qp_attr attr = { .qp_state = state };
		int mask;

		NEED(rdma_init_qp_attr(id, &attr, &mask) == 0);
		CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	}
}

/* The program creates and connects the queue pair itself, the server before or after it accepts. */
static void own_queue_pairs(int before)
{
	struct rdma_event_channel *passive = rdma_create_event_channel(), *active = rdma_create_event_channel();
	struct ibv_qp_init_attr init = init_attr();
	struct ibv_qp *qps[2];

	NEED(passive && active);
	struct rdma_cm_id *listen = listener(passive, "::", 7181);
	struct rdma_cm_id *client = client_of(active, "::1", 7181);
	struct ibv_cq *cq = ibv_create_cq(client->verbs, 16, NULL, NULL, 0);

	init.send_cq = init.recv_cq = cq;
	for (int i = 0; i < 2; i++)
		NEED(qps[i] = ibv_create_qp(client->pd, &init));
	struct rdma_conn_param param = { .qp_num = qps[0]->qp_num, .responder_resources = 1, .initiator_depth = 1 };

	NEED(rdma_connect(client, &param) == 0);
	struct rdma_cm_event *event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;

	CHECK(event->param.conn.qp_num == qps[0]->qp_num);
	param.qp_num = qps[1]->qp_num;
	if (before)
		set_up(server, qps[1]);
	NEED(rdma_accept(server, &param) == 0);
	if (!before)
		set_up(server, qps[1]);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = next_event(active, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->param.conn.qp_num == qps[1]->qp_num);
	set_up(client, qps[0]);
	CHECK(rdma_establish(client) == 0);
	CHECK_MINUS(rdma_establish(client), EINVAL);
	CHECK(rdma_ack_cm_event(event) == 0);
	expect_event(passive, server, RDMA_CM_EVENT_ESTABLISHED, 0);
	/* Destroying an id ends its connection. */
	CHECK(rdma_destroy_id(server) == 0);
	expect_event(active, client, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(rdma_destroy_id(client) == 0 && rdma_destroy_id(listen) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_destroy_qp(qps[i]) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

static void *serve(void *argument)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *info = NULL;
	struct ibv_qp_init_attr init = init_attr();
	struct rdma_cm_id *listen = NULL, *id = NULL;
	static char buffer[64];
	struct ibv_wc wc;

	NEED(rdma_getaddrinfo(NULL, "7182", &hints, &info) == 0);
	NEED(rdma_create_ep(&listen, info, NULL, &init) == 0);
	rdma_freeaddrinfo(info);
	NEED(rdma_listen(listen, 0) == 0);
	*(volatile int *)argument = 1;
	NEED(rdma_get_request(listen, &id) == 0);
	CHECK(id->qp && id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(id->channel && id->channel != listen->channel);
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof(buffer));

	NEED(mr && rdma_post_recv(id, NULL, buffer, sizeof(buffer), mr) == 0);
	NEED(rdma_accept(id, NULL) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	NEED(rdma_get_recv_comp(id, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS && strcmp(buffer, "by calls alone") == 0);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listen);
	return NULL;
}

/* Both ends use blocking calls. */
static void synchronous(void)
{
	struct rdma_addrinfo *info = NULL;
	struct ibv_qp_init_attr init = init_attr();
	struct rdma_cm_id *id = NULL;
	volatile int listening = 0;
	char buffer[64] = "by calls alone";
	struct ibv_wc wc;
	pthread_t thread;

	NEED(rdma_getaddrinfo("127.0.0.1", "7182", NULL, &info) == 0);
	NEED(rdma_create_ep(&id, info, NULL, NULL) == 0);
	CHECK_MINUS(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event && id->event->status == 8);
	rdma_destroy_ep(id);
	NEED(pthread_create(&thread, NULL, serve, (void *)&listening) == 0);
	while (!listening)
		usleep(1000);
	NEED(rdma_create_ep(&id, info, NULL, &init) == 0);
	rdma_freeaddrinfo(info);
	NEED(rdma_connect(id, NULL) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof(buffer));

	NEED(mr && rdma_post_send(id, NULL, buffer, sizeof(buffer), mr, 0) == 0);
	NEED(rdma_get_send_comp(id, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_disconnect(id) == 0);
	NEED(pthread_join(thread, NULL) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
}

static void *receive_by_xrc(void *argument)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_IB,
				       .ai_qp_type = IBV_QPT_XRC_RECV }, *info = NULL;
	struct ibv_qp_init_attr init = init_attr();
	struct ibv_srq_init_attr queue = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct rdma_cm_id *listen = NULL, *id = NULL;
	struct rdma_conn_param param = {};
	static char buffer[64];
	struct ibv_wc wc;
	uint32_t number;

	NEED(rdma_getaddrinfo(NULL, "7183", &hints, &info) == 0);
	NEED(rdma_create_ep(&listen, info, NULL, &init) == 0);
	rdma_freeaddrinfo(info);
	NEED(rdma_listen(listen, 0) == 0);
	*(volatile int *)argument = 1;
	NEED(rdma_get_request(listen, &id) == 0);
	NEED(id->qp && id->qp->qp_type == IBV_QPT_XRC_RECV);
	NEED(rdma_create_srq(id, NULL, &queue) == 0);
	NEED(ibv_get_srq_num(id->srq, &number) == 0);
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof(buffer));

	NEED(mr && rdma_post_recv(id, NULL, buffer, sizeof(buffer), mr) == 0);
	param.private_data = &number;
	param.private_data_len = sizeof(number);
	NEED(rdma_accept(id, &param) == 0);
	NEED(rdma_get_recv_comp(id, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS && strcmp(buffer, "to a queue by its number") == 0);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listen);
	return NULL;
}

/* Without a named domain, the target and the shared receive queue of an id share one. */
static void xrc(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_IB, .ai_qp_type = IBV_QPT_XRC_SEND }, *info = NULL;
	struct ibv_qp_init_attr init = init_attr();
	struct rdma_cm_id *id = NULL;
	volatile int listening = 0;
	char buffer[64] = "to a queue by its number";
	struct ibv_send_wr *bad, send = { .opcode = IBV_WR_SEND, .num_sge = 1 };
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = sizeof(buffer) };
	struct ibv_wc wc;
	pthread_t thread;

	NEED(pthread_create(&thread, NULL, receive_by_xrc, (void *)&listening) == 0);
	while (!listening)
		usleep(1000);
	NEED(rdma_getaddrinfo("127.0.0.1", "7183", &hints, &info) == 0);
	NEED(rdma_create_ep(&id, info, NULL, &init) == 0);
	rdma_freeaddrinfo(info);
	NEED(rdma_connect(id, NULL) == 0);
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof(buffer));

	NEED(mr);
	sge.lkey = mr->lkey;
	send.sg_list = &sge;
	memcpy(&send.qp_type.xrc.remote_srqn, id->event->param.conn.private_data, 4);
	NEED(ibv_post_send(id->qp, &send, &bad) == 0);
	NEED(rdma_get_send_comp(id, &wc) == 1);
	NEED(wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_disconnect(id) == 0);
	NEED(pthread_join(thread, NULL) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
}

int main(void)
{
	if (getenv("WITH_A_LINK")) {
		if (system("ip link add d0 type veth peer name d1 && ip addr add 10.84.0.1/24 dev d0 && ip link set d0 up"))
			return 77;
		setenv("FERROCE_NETDEV", "d0", 1);
		raise_lo();
		loopback_is_no_device("127.0.0.1", "7184");
		loopback_is_no_device("::1", "7185");
		all_of_loopback();
		return finish();
	}
	raise_lo();
	ports();
	both_ends("127.0.0.1", "127.0.0.1", 7174);
	both_ends("0.0.0.0", "127.0.0.1", 7175);
	both_ends("::1", "::1", 7176);
	both_ends("::", "::1", 7177);
	both_ends("::", "127.0.0.1", 7178);
	refusals();
	no_private_data();
	own_queue_pairs(0);
	own_queue_pairs(1);
	synchronous();
	xrc();
	return finish();
}
