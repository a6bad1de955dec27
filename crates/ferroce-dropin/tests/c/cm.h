/* Shared by the tests of connection management. */
#ifndef CM_H
#define CM_H

#include "check.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

static inline struct sockaddr_storage address_of(const char *text, int port)
{
	struct sockaddr_storage storage = {};
	struct sockaddr_in *v4 = (void *)&storage;
	struct sockaddr_in6 *v6 = (void *)&storage;

	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
	} else {
		NEED(inet_pton(AF_INET6, text, &v6->sin6_addr) == 1);
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
	}
	return storage;
}

static inline int resolve_addr(struct rdma_cm_id *id, const char *text, int port)
{
	struct sockaddr_storage to = address_of(text, port);

	return rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000);
}

/* The next event, which must be of this kind; the caller acknowledges it. */
static inline struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event = NULL;

	NEED(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != kind)
		fprintf(stderr, "%s, status %d, instead of %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(kind));
	NEED(event->event == kind);
	return event;
}

/* Checks and acknowledges the next event. */
static inline void expect_event(struct rdma_event_channel *channel, struct rdma_cm_id *id,
				enum rdma_cm_event_type kind, int status)
{
	struct rdma_cm_event *event = NULL;

	NEED(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != kind || event->status != status)
		fprintf(stderr, "%s, status %d\n", rdma_event_str(event->event), event->status);
	CHECK(event->event == kind);
	CHECK(event->status == status);
	CHECK(event->id == id);
	CHECK(event->listen_id == NULL);
	CHECK(rdma_ack_cm_event(event) == 0);
}

/* A synchronous id with a route to the loopback address. */
static inline struct rdma_cm_id *routed_id(enum rdma_port_space ps)
{
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(NULL, &id, NULL, ps) == 0);
	NEED(resolve_addr(id, "127.0.0.1", 7174) == 0);
	NEED(rdma_resolve_route(id, 2000) == 0);
	return id;
}

/* The Q_Key of librdmacm's datagrams, and the length of the header before one. */
enum { QKEY = 0x01234567, GRH = 40 };

/* Queues of a datagram id. */
static inline struct ibv_qp_init_attr datagram_init_attr(void)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UD,
		.sq_sig_all = 1,
	};
	return init;
}

#endif
