/* Datagrams by ids: a SIDR request resolves the peer's queue pair, without a connection. */
#include "cm.h"

#include <pthread.h>

static struct rdma_cm_id *listener(struct rdma_event_channel *channel, const char *text, int port)
{
	struct sockaddr_storage at = address_of(text, port);
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(channel, &id, &failures, RDMA_PS_UDP) == 0);
	NEED(rdma_bind_addr(id, (void *)&at) == 0);
	NEED(rdma_listen(id, 4) == 0);
	return id;
}

static struct rdma_cm_id *client_of(struct rdma_event_channel *channel, const char *text, int port)
{
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
	NEED(resolve_addr(id, text, port) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	NEED(rdma_resolve_route(id, 2000) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return id;
}

static void post_recv(struct rdma_cm_id *id, char *to, struct ibv_mr *mr)
{
	NEED(rdma_post_recv(id, NULL, to, 128, mr) == 0);
}

/* Both ends use events: the request, the answer, and datagrams in both directions. */
static void both_ends(const char *bound, const char *text, int port)
{
	struct rdma_event_channel *passive = rdma_create_event_channel(), *active = rdma_create_event_channel();
	char hello[181] = "hello", answer[137] = "answer", buffer[4][128] = {};
	struct rdma_conn_param param = { .private_data = hello, .private_data_len = 181 };
	struct ibv_qp_init_attr init;
	struct ibv_wc wc;

	NEED(passive && active);
	struct rdma_cm_id *listen = listener(passive, bound, port);
	struct rdma_cm_id *client = client_of(active, text, port);

	CHECK(client->qp_type == IBV_QPT_UD);
	init = datagram_init_attr();
	NEED(rdma_create_qp(client, NULL, &init) == 0);
	CHECK_MINUS(rdma_connect(client, &param), EINVAL);
	param.private_data_len = 180;
	NEED(rdma_connect(client, &param) == 0);
	CHECK_MINUS(rdma_connect(client, &param), EINVAL);

	struct rdma_cm_event *event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;

	CHECK(event->listen_id == listen && event->status == 0 && server != listen);
	CHECK(server->context == &failures && server->channel == passive && server->ps == RDMA_PS_UDP);
	CHECK(server->qp_type == IBV_QPT_UD && server->verbs == client->verbs && server->port_num == 1);
	CHECK(event->param.ud.private_data_len == 180 && memcmp(event->param.ud.private_data, hello, 180) == 0);
	CHECK(event->param.ud.qp_num == 0 && event->param.ud.qkey == 0);
	CHECK(rdma_get_src_port(server) == htons(port) && rdma_get_dst_port(server) == rdma_get_src_port(client));
	init = datagram_init_attr();
	NEED(rdma_create_qp(server, NULL, &init) == 0);
	struct ibv_mr *mr = ibv_reg_mr(server->pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);

	NEED(mr);
	post_recv(server, buffer[1], mr);
	param = (struct rdma_conn_param){ .private_data = answer, .private_data_len = 137 };
	CHECK_MINUS(rdma_accept(server, &param), EINVAL);
	param.private_data_len = 136;
	NEED(rdma_accept(server, &param) == 0);
	CHECK_MINUS(rdma_accept(server, &param), EINVAL);
	CHECK_MINUS(rdma_reject(server, NULL, 0), EINVAL);
	CHECK(rdma_ack_cm_event(event) == 0);

	event = next_event(active, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == client && event->listen_id == NULL && event->status == 0);
	CHECK(event->param.ud.private_data_len == 136 && memcmp(event->param.ud.private_data, answer, 136) == 0);
	CHECK(event->param.ud.qp_num == server->qp->qp_num && event->param.ud.qkey == QKEY);
	CHECK(event->param.ud.ah_attr.is_global == 1 && event->param.ud.ah_attr.port_num == 1);
	struct ibv_ah *ah = ibv_create_ah(client->pd, &event->param.ud.ah_attr);

	NEED(ah);
	strcpy(buffer[0], "without a connection");
	NEED(rdma_post_ud_send(client, NULL, buffer[0], 64, mr, 0, ah, event->param.ud.qp_num) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	NEED(rdma_get_send_comp(client, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS);
	NEED(rdma_get_recv_comp(server, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == GRH + 64 && wc.src_qp == client->qp->qp_num);
	CHECK(strcmp(buffer[1] + GRH, "without a connection") == 0);
	CHECK(ibv_destroy_ah(ah) == 0);

	/* Back to the sender. */
	ah = ibv_create_ah_from_wc(server->pd, &wc, (struct ibv_grh *)buffer[1], 1);
	NEED(ah);
	post_recv(client, buffer[3], mr);
	strcpy(buffer[2], "and back");
	NEED(rdma_post_ud_send(server, NULL, buffer[2], 64, mr, 0, ah, wc.src_qp) == 0);
	NEED(rdma_get_recv_comp(client, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS && strcmp(buffer[3] + GRH, "and back") == 0);
	NEED(rdma_get_send_comp(server, &wc) == 1);
	CHECK(ibv_destroy_ah(ah) == 0);

	/* Disconnecting succeeds and does nothing. */
	CHECK(rdma_disconnect(client) == 0 && rdma_disconnect(server) == 0);
	CHECK_MINUS(rdma_establish(client), EINVAL);
	CHECK(ibv_dereg_mr(mr) == 0);
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	CHECK(rdma_destroy_id(client) == 0 && rdma_destroy_id(server) == 0 && rdma_destroy_id(listen) == 0);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

static void expect_refusal(struct rdma_event_channel *channel, struct rdma_cm_id *id, int status, const char *why)
{
	struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_UNREACHABLE);

	CHECK(event->id == id && event->status == status && event->param.ud.private_data_len == 136);
	CHECK(strcmp(event->param.ud.private_data, why) == 0);
	CHECK(event->param.ud.qp_num == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
}

/* Refused by a program, for lack of a listener, and by the end of the listener: the requester's queue pair stays usable. */
static void refusals(void)
{
	struct rdma_event_channel *passive = rdma_create_event_channel(), *active = rdma_create_event_channel();
	struct ibv_qp_init_attr init = datagram_init_attr();
	char why[137] = "why not";
	struct ibv_qp_attr attr;

	NEED(passive && active);
	struct rdma_cm_id *listen = listener(passive, "127.0.0.1", 7284);
	struct rdma_cm_id *client = client_of(active, "127.0.0.1", 7284);

	NEED(rdma_create_qp(client, NULL, &init) == 0);
	NEED(rdma_connect(client, NULL) == 0);
	struct rdma_cm_event *event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;

	CHECK_MINUS(rdma_reject(server, why, 137), EINVAL);
	NEED(rdma_reject(server, why, 136) == 0);
	CHECK_MINUS(rdma_reject(server, why, 136), EINVAL);
	CHECK_MINUS(rdma_accept(server, NULL), EINVAL);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(server) == 0);
	expect_refusal(active, client, 2, why);
	NEED(ibv_query_qp(client->qp, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS);
	CHECK_MINUS(rdma_disconnect(client), EINVAL);
	rdma_destroy_qp(client);
	CHECK(rdma_destroy_id(client) == 0);

	/* Destroying its id rejects a fetched request, and the end of the listener rejects an unfetched one. */
	client = client_of(active, "127.0.0.1", 7284);
	NEED(rdma_connect(client, NULL) == 0);
	event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(server) == 0);
	expect_refusal(active, client, 2, "");
	CHECK(rdma_destroy_id(client) == 0);
	client = client_of(active, "127.0.0.1", 7284);
	NEED(rdma_connect(client, NULL) == 0);
	usleep(50000);
	CHECK(rdma_destroy_id(listen) == 0);
	expect_refusal(active, client, 2, "");
	CHECK(rdma_destroy_id(client) == 0);

	client = client_of(active, "127.0.0.1", 7284);
	NEED(rdma_connect(client, NULL) == 0);
	expect_refusal(active, client, 1, "");
	CHECK(rdma_destroy_id(client) == 0);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

/* The program's own queue pairs, with vendor options, and ids that are destroyed with a request pending. */
static void own_queue_pairs(void)
{
	struct rdma_event_channel *passive = rdma_create_event_channel(), *active = rdma_create_event_channel();
	struct ibv_ece ece = { .vendor_id = 0x123456, .options = 0x89abcdef }, other;
	struct rdma_conn_param param = { .qp_num = 0x345 };

	NEED(passive && active);
	struct rdma_cm_id *listen = listener(passive, "::", 7285);
	struct rdma_cm_id *client = client_of(active, "::1", 7285);

	NEED(rdma_connect(client, NULL) == 0);
	struct rdma_cm_event *event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;

	CHECK(rdma_set_local_ece(server, &ece) == 0);
	NEED(rdma_accept(server, &param) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = next_event(active, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.ud.qp_num == 0x345 && event->param.ud.qkey == QKEY);
	CHECK(rdma_get_remote_ece(client, &other) == 0);
	CHECK(other.vendor_id == 0x123456 && other.options == 0x89abcdef && other.comp_mask == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(client) == 0 && rdma_destroy_id(server) == 0);

	client = client_of(active, "127.0.0.1", 7285);
	NEED(rdma_connect(client, NULL) == 0);
	CHECK(rdma_destroy_id(client) == 0);
	event = next_event(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	server = event->id;
	CHECK(rdma_accept(server, &param) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(server) == 0 && rdma_destroy_id(listen) == 0);
	rdma_destroy_event_channel(active);
	rdma_destroy_event_channel(passive);
}

/* The IB port space has both: a listener for connections gets no SIDR requests, and the reverse. */
static void the_wrong_kind(void)
{
	struct sockaddr_storage at = address_of("127.0.0.1", 7286);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo info = {
		.ai_family = AF_INET, .ai_qp_type = IBV_QPT_UD, .ai_port_space = RDMA_PS_IB,
		.ai_dst_addr = (struct sockaddr *)&at, .ai_dst_len = sizeof(struct sockaddr_in),
	};
	struct rdma_cm_id *listen = NULL, *id = NULL;

	NEED(channel && rdma_create_id(channel, &listen, NULL, RDMA_PS_IB) == 0);
	CHECK(listen->qp_type == IBV_QPT_RC);
	NEED(rdma_bind_addr(listen, (void *)&at) == 0 && rdma_listen(listen, 4) == 0);
	NEED(rdma_create_ep(&id, &info, NULL, NULL) == 0);
	CHECK(id->qp_type == IBV_QPT_UD && id->ps == RDMA_PS_IB);
	CHECK_MINUS(rdma_connect(id, NULL), ECONNREFUSED);
	rdma_destroy_ep(id);
	CHECK(rdma_destroy_id(listen) == 0);
	rdma_destroy_event_channel(channel);
}

static void *serve(void *argument)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_UDP }, *info = NULL;
	struct ibv_qp_init_attr init = datagram_init_attr();
	struct rdma_cm_id *listen = NULL, *id = NULL;
	static char buffer[128];
	struct ibv_wc wc;

	NEED(rdma_getaddrinfo(NULL, "7287", &hints, &info) == 0);
	NEED(rdma_create_ep(&listen, info, NULL, &init) == 0);
	rdma_freeaddrinfo(info);
	NEED(rdma_listen(listen, 0) == 0);
	*(volatile int *)argument = 1;
	NEED(rdma_get_request(listen, &id) == 0);
	CHECK(id->qp && id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof(buffer));

	NEED(mr);
	post_recv(id, buffer, mr);
	NEED(rdma_accept(id, NULL) == 0);
	CHECK(!id->event);
	NEED(rdma_get_recv_comp(id, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS && strcmp(buffer + GRH, "by calls alone") == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listen);
	return NULL;
}

/* Both ends use blocking calls. */
static void synchronous(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_UDP }, *info = NULL;
	struct ibv_qp_init_attr init = datagram_init_attr();
	struct rdma_cm_id *id = NULL;
	volatile int listening = 0;
	char buffer[64] = "by calls alone";
	struct ibv_wc wc;
	pthread_t thread;

	NEED(rdma_getaddrinfo("127.0.0.1", "7287", &hints, &info) == 0);
	NEED(rdma_create_ep(&id, info, NULL, NULL) == 0);
	CHECK_MINUS(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_UNREACHABLE && id->event->status == 1);
	rdma_destroy_ep(id);
	NEED(pthread_create(&thread, NULL, serve, (void *)&listening) == 0);
	while (!listening)
		usleep(1000);
	NEED(rdma_create_ep(&id, info, NULL, &init) == 0);
	rdma_freeaddrinfo(info);
	NEED(rdma_connect(id, NULL) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof(buffer));
	struct ibv_ah *ah = ibv_create_ah(id->pd, &id->event->param.ud.ah_attr);

	NEED(mr && ah);
	NEED(rdma_post_ud_send(id, NULL, buffer, sizeof(buffer), mr, 0, ah, id->event->param.ud.qp_num) == 0);
	NEED(rdma_get_send_comp(id, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS);
	NEED(pthread_join(thread, NULL) == 0);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(ibv_destroy_ah(ah) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
}

int main(void)
{
	raise_lo();
	both_ends("127.0.0.1", "127.0.0.1", 7280);
	both_ends("::1", "::1", 7281);
	both_ends("::", "127.0.0.1", 7282);
	both_ends("::", "::1", 7283);
	refusals();
	own_queue_pairs();
	the_wrong_kind();
	synchronous();
	return finish();
}
