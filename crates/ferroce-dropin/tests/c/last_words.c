/* A peer that has our last message ends the connection at once: its acknowledgement and its disconnect arrive together. The
 * send was delivered, so it completes with success, whether the program polls before or after it disconnects. The ends are
 * two processes, because two ends of one process share a socket, and each would receive the other's packets. */
#include "cm.h"

#include <sys/wait.h>

enum { ROUNDS = 300, PORT = 7188, LENGTH = 64, SEND = 2, RECV = 1 };

static char memory[LENGTH];

struct end {
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
};

/* Gives the id a queue pair with a posted receive. */
static struct end equip(struct rdma_cm_id *id)
{
	struct end end = { .id = id, .cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0) };
	struct ibv_qp_init_attr init = {
		.send_cq = end.cq,
		.recv_cq = end.cq,
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	NEED(end.cq && rdma_create_qp(id, NULL, &init) == 0);
	end.mr = ibv_reg_mr(id->pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	NEED(end.mr && rdma_post_recv(id, (void *)(intptr_t)RECV, memory, LENGTH, end.mr) == 0);
	return end;
}

static void strip(struct end *end)
{
	rdma_destroy_qp(end->id);
	NEED(ibv_dereg_mr(end->mr) == 0 && ibv_destroy_cq(end->cq) == 0 && rdma_destroy_id(end->id) == 0);
}

static struct ibv_wc polled(struct end *end)
{
	struct ibv_wc wc;
	int got;

	do
		got = ibv_poll_cq(end->cq, 1, &wc);
	while (got == 0);
	NEED(got == 1);
	return wc;
}

static void send_to(struct end *peer)
{
	NEED(rdma_post_send(peer->id, (void *)(intptr_t)SEND, memory, LENGTH, peer->mr, 0) == 0);
}

/* Sends the request, and after the answer ends the connection: by a disconnect, or by destroying everything. */
static void client(int round)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id = NULL;

	NEED(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(resolve_addr(id, "127.0.0.1", PORT) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	NEED(rdma_resolve_route(id, 2000) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	struct end end = equip(id);

	NEED(rdma_connect(id, &param) == 0);
	NEED(rdma_ack_cm_event(next_event(channel, RDMA_CM_EVENT_ESTABLISHED)) == 0);
	send_to(&end);
	while (polled(&end).wr_id != RECV)
		;
	if (round & 1)
		NEED(rdma_disconnect(id) == 0);
	strip(&end);
	rdma_destroy_event_channel(channel);
}

/* Answers, and returns the completion status of the answer's send. */
static enum ibv_wc_status serve(struct rdma_event_channel *channel, int round)
{
	struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct end end = equip(event->id);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;

	NEED(rdma_accept(end.id, &param) == 0 && rdma_ack_cm_event(event) == 0);
	expect_event(channel, end.id, RDMA_CM_EVENT_ESTABLISHED, 0);
	NEED(polled(&end).wr_id == RECV);
	send_to(&end);
	expect_event(channel, end.id, RDMA_CM_EVENT_DISCONNECTED, 0);
	/* The program itself destroys the queue pair. */
	NEED(ibv_query_qp(end.id->qp, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS);
	if (round & 2)
		NEED(rdma_disconnect(end.id) == 0);
	wc = polled(&end);
	NEED(wc.wr_id == SEND);
	if (!(round & 2))
		NEED(rdma_disconnect(end.id) == 0);
	strip(&end);
	return wc.status;
}

int main(void)
{
	int listens[2], flushed = 0, status = -1;

	raise_lo();
	NEED(pipe(listens) == 0);
	pid_t child = fork();

	NEED(child >= 0);
	alarm(50);
	if (child == 0) {
		char ready;

		NEED(read(listens[0], &ready, 1) == 1);
		for (int round = 0; round < ROUNDS; round++)
			client(round);
		return finish();
	}
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage at = address_of("127.0.0.1", PORT);
	struct rdma_cm_id *listen = NULL;

	NEED(channel && rdma_create_id(channel, &listen, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listen, (void *)&at) == 0 && rdma_listen(listen, 4) == 0);
	NEED(write(listens[1], "", 1) == 1);
	for (int round = 0; round < ROUNDS; round++)
		flushed += serve(channel, round) != IBV_WC_SUCCESS;
	if (flushed)
		fprintf(stderr, "%d of %d sends that were delivered failed\n", flushed, ROUNDS);
	CHECK(flushed == 0);
	CHECK(rdma_destroy_id(listen) == 0);
	rdma_destroy_event_channel(channel);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return finish();
}
