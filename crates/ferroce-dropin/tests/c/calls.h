/* Every kind of call, each in a function without arguments, in an order in which a program can make them. The program that
 * includes this decides how a step runs. With IWARP in the environment, connections of librdmacm alone. */
#ifndef CALLS_H
#define CALLS_H

#include "cm.h"
#include "pair.h"

#include <fcntl.h>
#include <infiniband/umad.h>
#include <rdma/rsocket.h>
#include <sys/mman.h>

/* The program's own. */
static void step(const char *name, void (*call)(void));

static struct end a, b, c, d;
static struct ibv_srq *srq;
static struct ibv_ah *ah;
static struct ibv_comp_channel *completions;
static struct rdma_event_channel *channel;
static struct rdma_cm_id *server, *client, *accepted;
static struct rdma_cm_event *event;
static struct ibv_device **devices;
static int port;

static void list_devices(void) { NEED(devices = ibv_get_device_list(NULL)); }
static void open_one(void) { NEED(context = ibv_open_device(devices[0])); }
static void alloc_pd(void) { NEED(pd = ibv_alloc_pd(context)); }
static void create_channel(void) { NEED(completions = ibv_create_comp_channel(context)); }
static void create_cqs(void) { NEED((a.cq = ibv_create_cq(context, 64, NULL, completions, 0)) && (b.cq = ibv_create_cq(context, 64, NULL, NULL, 0))); }
static void register_memory(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	a.mr = ibv_reg_mr(pd, a.memory = calloc(1, 65536), 65536, access);
	b.mr = ibv_reg_mr(pd, b.memory = calloc(1, 65536), 65536, access);
	NEED(a.mr && b.mr);
}
static void register_more(void)
{
	size_t large = 64 << 20;
	void *memory = mmap(NULL, large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct ibv_mr *all, *code = ibv_reg_mr(pd, (void *)register_more, 16, 0);

	NEED(code && (all = ibv_reg_mr(pd, memory, large, IBV_ACCESS_LOCAL_WRITE)));
	NEED(ibv_rereg_mr(all, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_READ) == 0);
	NEED(ibv_dereg_mr(all) == 0 && ibv_dereg_mr(code) == 0 && munmap(memory, large) == 0);
}
static void other_objects(void)
{
	struct ibv_alloc_dm_attr length = { .length = 4096 };
	struct ibv_td_init_attr none = {};
	struct ibv_mw *window;
	struct ibv_dm *memory;
	struct ibv_td *domain;

	NEED((window = ibv_alloc_mw(pd, IBV_MW_TYPE_1)) && ibv_dealloc_mw(window) == 0);
	NEED((memory = ibv_alloc_dm(context, &length)) && ibv_free_dm(memory) == 0);
	NEED((domain = ibv_alloc_td(context, &none)) && ibv_dealloc_td(domain) == 0);
}
static struct ibv_qp_init_attr init_attr(struct ibv_cq *cq)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
	};
}
static void create_qps(void)
{
	struct ibv_qp_init_attr first = init_attr(a.cq), second = init_attr(b.cq);

	NEED((a.qp = ibv_create_qp(pd, &first)) && (b.qp = ibv_create_qp(pd, &second)));
}
static void create_srq(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };

	NEED(srq = ibv_create_srq(pd, &init));
}
static void create_ah(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };

	NEED(ibv_query_gid(context, 1, 0, &attr.grh.dgid) == 0 && (ah = ibv_create_ah(pd, &attr)));
}
static void modify_qps(void)
{
	to_rts(&a, b.qp->qp_num);
	to_rts(&b, a.qp->qp_num);
}
static void receive(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)b.memory, .length = 60000, .lkey = b.mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	NEED(ibv_post_recv(b.qp, &wr, &bad) == 0);
}
static void send_one(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)a.memory, .length = 60000, .lkey = a.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

	NEED(ibv_req_notify_cq(a.cq, 0) == 0 && ibv_post_send(a.qp, &wr, &bad) == 0);
}
static void poll_empty(void)
{
	struct ibv_wc wc;

	NEED(ibv_poll_cq(a.cq, 1, &wc) == 0);
}
static void poll_both(void)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(b.cq, 1, &wc) == 0)
		;
	CHECK(wc.status == IBV_WC_SUCCESS);
}
static void get_cq_event(void)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *user;

	NEED(ibv_get_cq_event(completions, &cq, &user) == 0);
	ibv_ack_cq_events(cq, 1);
	while (ibv_poll_cq(a.cq, 1, &wc) == 0)
		;
	CHECK(wc.status == IBV_WC_SUCCESS);
}
static void write_extended(void)
{
	ibv_wr_start(c.qpx);
	c.qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(c.qpx, d.mr->rkey, (uintptr_t)d.memory);
	ibv_wr_set_sge(c.qpx, c.mr->lkey, (uintptr_t)c.memory, 60000);
	NEED(ibv_wr_complete(c.qpx) == 0);
}
static void poll_extended(void)
{
	struct ibv_poll_cq_attr attr = {};

	while (ibv_start_poll(c.cq_ex, &attr) == ENOENT)
		;
	CHECK(c.cq_ex->status == IBV_WC_SUCCESS);
	ibv_end_poll(c.cq_ex);
}
static void make_extended(void) { make_pair(&c, &d); }
static void free_extended(void)
{
	free_end(&c);
	free_end(&d);
}
static void read_one(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)a.memory, .length = 60000, .lkey = a.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;

	wr.wr.rdma.remote_addr = (uintptr_t)b.memory;
	wr.wr.rdma.rkey = b.mr->rkey;
	NEED(ibv_post_send(a.qp, &wr, &bad) == 0);
	while (ibv_poll_cq(a.cq, 1, &wc) == 0)
		;
	CHECK(wc.status == IBV_WC_SUCCESS);
}
static struct ibv_qp *datagram, *raw;
static struct ibv_flow *flow;
static union ibv_gid group = { .raw = { [10] = 255, 255, 239, 1, 2, 3 } };

static void modify_datagram_qp(void)
{
	struct ibv_qp_init_attr init = init_attr(a.cq);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };

	init.qp_type = IBV_QPT_UD;
	NEED(datagram = ibv_create_qp(pd, &init));
	NEED(!ibv_modify_qp(datagram, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(datagram, &attr, IBV_QP_STATE));
}
static void attach_group(void) { NEED(!ibv_attach_mcast(datagram, &group, 0)); }
static void detach_group(void) { NEED(!ibv_detach_mcast(datagram, &group, 0) && !ibv_destroy_qp(datagram)); }
static void make_raw_qp(void)
{
	struct ibv_qp_init_attr init = init_attr(a.cq);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	init.qp_type = IBV_QPT_RAW_PACKET;
	NEED(raw = ibv_create_qp(pd, &init));
	NEED(!ibv_modify_qp(raw, &attr, IBV_QP_STATE | IBV_QP_PORT));
	attr.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(raw, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	NEED(!ibv_modify_qp(raw, &attr, IBV_QP_STATE));
}
static void make_flow(void)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .num_of_specs = 1, .port = 1 },
		.eth = {
			.type = IBV_FLOW_SPEC_ETH, .size = sizeof(struct ibv_flow_spec_eth),
			.val = { .ether_type = htons(0x88b5) }, .mask = { .ether_type = 0xffff },
		},
	};

	NEED(flow = ibv_create_flow(raw, &rule.attr));
}
/* The interface is lo, so the frame comes back. */
static void raw_frame(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)a.memory, .length = 60, .lkey = a.mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;

	memcpy(a.memory + 12, "\x88\xb5", 2);
	NEED(!ibv_post_recv(raw, &receive, &bad_receive) && !ibv_post_send(raw, &send, &bad));
	for (int left = 2; left > 0; left -= ibv_poll_cq(a.cq, 1, &wc))
		;
	CHECK(wc.status == IBV_WC_SUCCESS);
}
static void destroy_raw(void) { NEED(!ibv_destroy_flow(flow) && !ibv_destroy_qp(raw)); }
static void xrc(void)
{
	struct ibv_xrcd_init_attr init = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT,
	};
	struct ibv_xrcd *domain = ibv_open_xrcd(context, &init);
	struct ibv_srq_init_attr_ex queue = {
		.attr = { .max_wr = 8, .max_sge = 1 },
		.srq_type = IBV_SRQT_XRC,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.pd = pd, .xrcd = domain, .cq = a.cq,
	};
	struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = domain };
	struct ibv_qp_init_attr_ex initiator = {
		.send_cq = a.cq, .cap = { .max_send_wr = 8, .max_send_sge = 1 }, .qp_type = IBV_QPT_XRC_SEND,
		.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd,
	};
	struct ibv_srq *shared;
	struct ibv_qp *first, *second;

	NEED(domain && (shared = ibv_create_srq_ex(context, &queue)));
	NEED((first = ibv_create_qp_ex(context, &target)) && (second = ibv_create_qp_ex(context, &initiator)));
	NEED(!ibv_destroy_qp(second) && !ibv_destroy_qp(first) && !ibv_destroy_srq(shared) && !ibv_close_xrcd(domain));
}
static void query(void)
{
	struct ibv_device_attr device;
	struct ibv_port_attr attr;
	struct ibv_qp_attr qp;
	struct ibv_qp_init_attr init;

	union ibv_gid gid;

	NEED(ibv_query_device(context, &device) == 0 && ibv_query_port(context, 1, &attr) == 0);
	NEED(ibv_query_gid(context, 1, 0, &gid) == 0);
	NEED(ibv_query_qp(a.qp, &qp, 0, &init) == 0);
}
static void destroy_qps(void) { NEED(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0); }
static void destroy_rest(void)
{
	NEED(ibv_destroy_ah(ah) == 0 && ibv_destroy_srq(srq) == 0 && ibv_dereg_mr(a.mr) == 0 && ibv_dereg_mr(b.mr) == 0);
	NEED(ibv_destroy_cq(a.cq) == 0 && ibv_destroy_cq(b.cq) == 0 && ibv_destroy_comp_channel(completions) == 0);
}

static void close_device(void) { CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0); }

static void create_event_channel(void) { NEED(channel = rdma_create_event_channel()); }
static void create_ids(void)
{
	NEED(rdma_create_id(channel, &server, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_create_id(channel, &client, NULL, RDMA_PS_TCP) == 0);
}
static void bind_and_listen(void)
{
	struct sockaddr_storage at = address_of("127.0.0.1", 0);

	NEED(rdma_bind_addr(server, (struct sockaddr *)&at) == 0 && rdma_listen(server, 1) == 0);
	port = ntohs(rdma_get_src_port(server));
}
static void take_event(void)
{
	NEED(rdma_get_cm_event(channel, &event) == 0);
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		accepted = event->id;
	NEED(event->status == 0);
	NEED(rdma_ack_cm_event(event) == 0);
}
static void resolve_address(void) { NEED(resolve_addr(client, "127.0.0.1", port) == 0); }
static void resolve_route(void) { NEED(rdma_resolve_route(client, 2000) == 0); }
static void create_id_qps(void)
{
	struct ibv_qp_init_attr init = init_attr(NULL);

	NEED(rdma_create_qp(client, NULL, &init) == 0);
}
static void create_accepted_qp(void)
{
	struct ibv_qp_init_attr init = init_attr(NULL);

	NEED(rdma_create_qp(accepted, NULL, &init) == 0);
}
static void connect_client(void)
{
	struct rdma_conn_param param = { .retry_count = 7 };

	NEED(rdma_connect(client, &param) == 0);
}
static void accept_client(void)
{
	struct rdma_conn_param param = { .retry_count = 7 };

	NEED(rdma_accept(accepted, &param) == 0);
}
static char text[60000];
static struct ibv_mr *sent, *received;

static void id_registrations(void)
{
	NEED((sent = rdma_reg_msgs(client, text, sizeof(text) / 2)) != NULL);
	NEED((received = rdma_reg_msgs(accepted, text + sizeof(text) / 2, sizeof(text) / 2)) != NULL);
}
static void id_posts(void)
{
	NEED(rdma_post_recv(accepted, NULL, text + sizeof(text) / 2, sizeof(text) / 2, received) == 0);
	NEED(rdma_post_send(client, NULL, text, sizeof(text) / 2, sent, IBV_SEND_SIGNALED) == 0);
}
static void id_completions(void)
{
	struct ibv_wc wc;

	NEED(rdma_get_recv_comp(accepted, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	NEED(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	NEED(rdma_dereg_mr(sent) == 0 && rdma_dereg_mr(received) == 0);
}
static void disconnect(void) { NEED(rdma_disconnect(client) == 0); }
static void destroy_ids(void)
{
	rdma_destroy_qp(client);
	rdma_destroy_qp(accepted);
	NEED(rdma_destroy_id(client) == 0 && rdma_destroy_id(accepted) == 0 && rdma_destroy_id(server) == 0);
	rdma_destroy_event_channel(channel);
}

static int listening, ends[2];

static void rsocket_listen(void)
{
	struct sockaddr_storage at = address_of("127.0.0.1", 0);
	socklen_t length = sizeof(at);

	NEED((listening = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	NEED(rbind(listening, (void *)&at, sizeof(at)) == 0 && rlisten(listening, 5) == 0);
	NEED(rgetsockname(listening, (void *)&at, &length) == 0);
	port = ntohs(((struct sockaddr_in *)&at)->sin_port);
}
static void rsocket_connect(void)
{
	struct sockaddr_storage at = address_of("127.0.0.1", port);

	NEED((ends[0] = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	NEED(rconnect(ends[0], (void *)&at, sizeof(at)) == 0);
}
static void rsocket_accept(void) { NEED((ends[1] = raccept(listening, NULL, NULL)) >= 0); }
static void rsocket_data(void)
{
	static char out[20000], in[20000];

	NEED(rsend(ends[0], out, sizeof(out), 0) == sizeof(out));
	NEED(rrecv(ends[1], in, sizeof(in), MSG_WAITALL) == sizeof(in));
}
static void rsocket_wait(void)
{
	struct pollfd fd = { .fd = ends[0], .events = POLLOUT };

	NEED(rpoll(&fd, 1, -1) == 1);
}
static void rsocket_close(void) { NEED(rclose(ends[0]) == 0 && rclose(ends[1]) == 0 && rclose(listening) == 0); }

static int datagrams[2];

static void datagrams_bind(void)
{
	struct sockaddr_storage at = address_of("127.0.0.1", 7175);

	NEED((datagrams[0] = rsocket(AF_INET, SOCK_DGRAM, 0)) >= 0 && (datagrams[1] = rsocket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	NEED(rbind(datagrams[1], (void *)&at, sizeof(at)) == 0);
}
static void datagrams_data(void)
{
	struct sockaddr_storage at = address_of("127.0.0.1", 7175);
	char text[64] = "datagram";

	NEED(rsendto(datagrams[0], text, sizeof(text), 0, (void *)&at, sizeof(struct sockaddr_in)) == sizeof(text));
	NEED(rrecv(datagrams[1], text, sizeof(text), 0) == sizeof(text));
}
static void datagrams_close(void) { NEED(rclose(datagrams[0]) == 0 && rclose(datagrams[1]) == 0); }

static int mad_port;

static void umad_open(void)
{
	umad_port_t found;

	NEED(umad_init() == 0 && umad_get_port(NULL, 0, &found) == 0 && umad_release_port(&found) == 0);
	NEED((mad_port = umad_open_port(NULL, 0)) >= 0);
	NEED(umad_register(mad_port, 0x04, 1, 0, NULL) >= 0);
}
static void umad_wait(void) { CHECK(umad_poll(mad_port, 1) < 0); }
static void umad_close(void) { NEED(umad_close_port(mad_port) == 0 && umad_done() == 0); }

#define STEP(call) step(#call, call)

static void all_steps(void)
{
	if (!getenv("IWARP")) {
		STEP(list_devices);
		STEP(open_one);
		STEP(alloc_pd);
		STEP(create_channel);
		STEP(create_cqs);
		STEP(register_memory);
		STEP(register_more);
		STEP(other_objects);
		STEP(create_qps);
		STEP(create_srq);
		STEP(create_ah);
		STEP(modify_qps);
		STEP(poll_empty);
		STEP(receive);
		STEP(send_one);
		STEP(poll_both);
		STEP(get_cq_event);
		STEP(read_one);
		STEP(query);
		STEP(xrc);
		STEP(modify_datagram_qp);
		STEP(attach_group);
		STEP(detach_group);
		STEP(make_raw_qp);
		STEP(make_flow);
		STEP(raw_frame);
		STEP(destroy_raw);
		STEP(make_extended);
		STEP(write_extended);
		STEP(poll_extended);
		STEP(free_extended);
		STEP(destroy_qps);
		STEP(destroy_rest);
		STEP(close_device);
	}
	STEP(create_event_channel);
	STEP(create_ids);
	STEP(bind_and_listen);
	STEP(resolve_address);
	STEP(take_event);
	STEP(resolve_route);
	STEP(take_event);
	STEP(create_id_qps);
	STEP(connect_client);
	STEP(take_event);
	STEP(create_accepted_qp);
	STEP(accept_client);
	STEP(take_event);
	STEP(take_event);
	STEP(id_registrations);
	STEP(id_posts);
	STEP(id_completions);
	STEP(disconnect);
	STEP(take_event);
	STEP(destroy_ids);
	if (getenv("IWARP"))
		return;
	STEP(rsocket_listen);
	STEP(rsocket_connect);
	STEP(rsocket_accept);
	STEP(rsocket_data);
	STEP(rsocket_wait);
	STEP(rsocket_close);
	STEP(datagrams_bind);
	STEP(datagrams_data);
	STEP(datagrams_close);
	STEP(umad_open);
	STEP(umad_wait);
	STEP(umad_close);
}

#endif
