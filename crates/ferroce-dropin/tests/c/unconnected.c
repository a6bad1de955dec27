/* Connections that are not made, each of which costs one line on standard error that names the address and the cause. The test looks at
 * the lines. */
#include "cm.h"

static struct rdma_cm_id *id_of(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(channel, &id, NULL, space) == 0);
	return id;
}

/* A connection to a port at which nobody listens, twice. */
static void refused(struct rdma_event_channel *channel, enum rdma_port_space space, enum rdma_cm_event_type kind, int status)
{
	for (int times = 0; times < 2; times++) {
		struct rdma_cm_id *id = id_of(channel, space);
		struct ibv_qp_init_attr init = {
			.qp_type = space == RDMA_PS_TCP ? IBV_QPT_RC : IBV_QPT_UD,
			.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		struct rdma_conn_param param = {};

		NEED(resolve_addr(id, "127.0.0.1", 7999) == 0);
		expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
		NEED(rdma_resolve_route(id, 2000) == 0);
		expect_event(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
		NEED(rdma_create_qp(id, NULL, &init) == 0);
		NEED(rdma_connect(id, &param) == 0);
		expect_event(channel, id, kind, status);
		rdma_destroy_qp(id);
		CHECK(rdma_destroy_id(id) == 0);
	}
}

int main(void)
{
	raise_lo();
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *holder, *other;
	struct sockaddr_storage at = address_of("127.0.0.1", 7471), foreign = address_of("10.9.8.7", 0);

	NEED(channel);
	holder = id_of(channel, RDMA_PS_TCP);
	other = id_of(channel, RDMA_PS_TCP);
	CHECK_MINUS(rdma_bind_addr(other, (void *)&foreign), EADDRNOTAVAIL);
	NEED(rdma_bind_addr(holder, (void *)&at) == 0);
	CHECK_MINUS(rdma_bind_addr(other, (void *)&at), EADDRINUSE);
	refused(channel, RDMA_PS_TCP, RDMA_CM_EVENT_REJECTED, 8);
	/* The same cause has the same line. */
	refused(channel, RDMA_PS_UDP, RDMA_CM_EVENT_UNREACHABLE, 1);
	NEED(resolve_addr(other, "10.9.8.7", 7999) == 0);
	expect_event(channel, other, RDMA_CM_EVENT_ADDR_ERROR, -ENETUNREACH);
	CHECK_MINUS(rdma_connect(other, NULL), EINVAL);
	CHECK_MINUS(rdma_resolve_route(holder, 2000), EINVAL);
	CHECK(rdma_listen(holder, 1) == 0);
	CHECK_MINUS(rdma_listen(holder, 1), EINVAL);
	CHECK_MINUS(rdma_accept(holder, NULL), EINVAL);
	CHECK(rdma_destroy_id(holder) == 0 && rdma_destroy_id(other) == 0);
	rdma_destroy_event_channel(channel);
	return finish();
}
