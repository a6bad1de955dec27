/* Ids, channels and events: the channel of each event, blocking destroy calls, and errors of wrong callers. */
#include "cm.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

static int readable(int fd)
{
	struct pollfd poller = { .fd = fd, .events = POLLIN };

	return poll(&poller, 1, 0);
}

static volatile int acknowledged;

static void *acknowledge_late(void *event)
{
	usleep(50000);
	acknowledged = 1;
	CHECK(rdma_ack_cm_event(event) == 0);
	return NULL;
}

static void channels(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event = NULL;
	struct rdma_cm_id *id = NULL;
	int context;

	NEED(channel);
	CHECK(channel->fd >= 0);
	CHECK(fcntl(channel->fd, F_GETFD) == FD_CLOEXEC);
	CHECK(readable(channel->fd) == 0);
	NEED(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK_MINUS(rdma_get_cm_event(channel, &event), EAGAIN);

	NEED(rdma_create_id(channel, &id, &context, RDMA_PS_TCP) == 0);
	CHECK(id->channel == channel && id->context == &context && id->ps == RDMA_PS_TCP);
	CHECK(id->qp_type == IBV_QPT_RC && !id->verbs && !id->qp && !id->event && !id->pd);
	CHECK(rdma_get_src_port(id) == 0 && rdma_get_dst_port(id) == 0);
	CHECK(resolve_addr(id, "127.0.0.1", 7174) == 0);
	CHECK(readable(channel->fd) == 1);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(readable(channel->fd) == 0);
	CHECK(rdma_get_dst_port(id) == htons(7174));
	CHECK_MINUS(rdma_get_cm_event(channel, &event), EAGAIN);

	/* Destroying the id discards its unread events. */
	CHECK(rdma_resolve_route(id, 2000) == 0);
	CHECK(readable(channel->fd) == 1);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(readable(channel->fd) == 0);
	CHECK_MINUS(rdma_destroy_id(id), EINVAL);
	CHECK_MINUS(resolve_addr(id, "127.0.0.1", 7174), EINVAL);
	rdma_destroy_event_channel(channel);
	/* A thread of rping may come late, and expects what a closed descriptor gives. */
	CHECK_MINUS(rdma_get_cm_event(channel, &event), EBADF);
	CHECK_MINUS(rdma_get_cm_event(channel, NULL), EINVAL);
	rdma_destroy_event_channel(channel);
}

static void destroying_waits(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event = NULL;
	struct rdma_cm_id *id = NULL;
	pthread_t thread;

	NEED(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
	CHECK(id->qp_type == IBV_QPT_UD);
	NEED(resolve_addr(id, "::1", 1) == 0 && rdma_get_cm_event(channel, &event) == 0);
	NEED(pthread_create(&thread, NULL, acknowledge_late, event) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(acknowledged);
	NEED(pthread_join(thread, NULL) == 0);
	CHECK_MINUS(rdma_ack_cm_event(event), EINVAL);
	rdma_destroy_event_channel(channel);
}

static void synchronous(void)
{
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(id->channel);
	CHECK(resolve_addr(id, "127.0.0.1", 7174) == 0);
	NEED(id->event);
	CHECK(id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED && id->event->id == id);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	NEED(id->event);
	CHECK(id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(readable(id->channel->fd) == 0);
	CHECK(rdma_destroy_id(id) == 0);

	NEED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK_MINUS(resolve_addr(id, "203.0.113.1", 7174), ENETUNREACH);
	NEED(id->event);
	CHECK(id->event->event == RDMA_CM_EVENT_ADDR_ERROR && id->event->status == -ENETUNREACH);
	/* Another attempt may succeed. */
	CHECK(resolve_addr(id, "127.0.0.1", 7174) == 0);
	CHECK(rdma_destroy_id(id) == 0);
}

static void migration(void)
{
	struct rdma_event_channel *first = rdma_create_event_channel();
	struct rdma_event_channel *second = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL, *other = NULL;

	NEED(first && second);
	NEED(rdma_create_id(first, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_create_id(first, &other, NULL, RDMA_PS_TCP) == 0);
	NEED(resolve_addr(other, "127.0.0.1", 1) == 0 && resolve_addr(id, "127.0.0.1", 2) == 0);
	CHECK(rdma_migrate_id(id, second) == 0);
	CHECK(id->channel == second);
	expect_event(first, other, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(readable(first->fd) == 0);
	expect_event(second, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);

	/* To a channel of its own, and back. */
	CHECK(rdma_migrate_id(id, NULL) == 0);
	CHECK(id->channel && id->channel != second);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(rdma_migrate_id(id, first) == 0);
	CHECK(id->channel == first && !id->event);
	CHECK(readable(first->fd) == 0 && readable(second->fd) == 0);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(other) == 0);
	rdma_destroy_event_channel(first);
	rdma_destroy_event_channel(second);
}

static void wrong_callers(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event = NULL;
	struct rdma_cm_id *id = NULL;
	struct sockaddr_storage to = address_of("127.0.0.1", 1), six = address_of("::1", 1);
	struct sockaddr *v4 = (void *)&to, *v6 = (void *)&six;
	/* The buffers have the size of the family's addresses, because the library reads all of it. */
	struct sockaddr_storage unix_domain = { .ss_family = AF_UNIX }, ib = { .ss_family = 27 /* AF_IB */ };
	struct sockaddr *local = (void *)&unix_domain, *gid = (void *)&ib;

	NEED(channel);
	CHECK_MINUS(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
	CHECK_MINUS(rdma_create_id(channel, &id, NULL, 77), EINVAL);
	CHECK(id == NULL);
	CHECK_MINUS(rdma_destroy_id(NULL), EINVAL);
	CHECK_MINUS(rdma_migrate_id(NULL, channel), EINVAL);
	CHECK_MINUS(rdma_get_cm_event(NULL, &event), EINVAL);
	CHECK_MINUS(rdma_get_cm_event(channel, NULL), EINVAL);
	CHECK_MINUS(rdma_ack_cm_event(NULL), EINVAL);
	CHECK_MINUS(rdma_resolve_addr(NULL, NULL, v4, 1), EINVAL);
	CHECK_MINUS(rdma_resolve_route(NULL, 1), EINVAL);
	CHECK(rdma_get_src_port(NULL) == 0 && rdma_get_dst_port(NULL) == 0);
	rdma_destroy_event_channel(NULL);

	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_IB) == 0);
	CHECK_MINUS(rdma_resolve_addr(id, NULL, NULL, 1), EINVAL);
	CHECK_MINUS(rdma_resolve_addr(id, v6, v4, 1), EINVAL);
	CHECK_MINUS(rdma_resolve_addr(id, NULL, local, 1), EINVAL);
	CHECK_MINUS(rdma_resolve_addr(id, NULL, gid, 1), ENODEV);
	CHECK_MINUS(rdma_resolve_route(id, 1), EINVAL);
	CHECK(rdma_resolve_addr(id, NULL, v4, 1) == 0);
	CHECK_MINUS(rdma_resolve_addr(id, NULL, v4, 1), EINVAL);
	CHECK(rdma_resolve_route(id, 1) == 0);
	CHECK_MINUS(rdma_resolve_route(id, 1), EINVAL);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

static void options(void)
{
	struct rdma_cm_id *id = NULL, *datagrams = NULL;
	struct ibv_path_data path = {};
	uint8_t tos = 0x28, timeout = 20, too_long = 32;
	int yes = 1;

	NEED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_create_id(NULL, &datagrams, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof(yes)) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof(yes)) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1) == 0);
	CHECK_MINUS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &too_long, 1), EINVAL);
	CHECK_MINUS(rdma_set_option(datagrams, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1), EINVAL);
	CHECK_MINUS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 4), EINVAL);
	CHECK_MINUS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), EINVAL);
	CHECK_MINUS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, 1), EINVAL);
	CHECK_MINUS(rdma_set_option(id, RDMA_OPTION_ID, 99, &yes, sizeof(yes)), ENOSYS);
	CHECK_MINUS(rdma_set_option(id, 99, 0, &yes, sizeof(yes)), ENOSYS);
	CHECK_MINUS(rdma_set_option(NULL, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1), EINVAL);

	/* The program sets its own path between resolving and connecting; everything else stays as resolved. */
	path.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
	path.path.mtu = 2 << 6 | IBV_MTU_1024;
	path.path.tclass = 0x44;
	path.path.flowlabel_hoplimit = htobe32(0x12345 << 8 | 9);
	path.path.reversible_numpath = 0x81;
	CHECK_MINUS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof(path)), EINVAL);
	NEED(resolve_addr(id, "127.0.0.1", 7174) == 0);
	CHECK_MINUS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, 5), EINVAL);
	CHECK_MINUS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, NULL, sizeof(path)), EINVAL);
	CHECK_MINUS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof(yes)), EINVAL);
	CHECK(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof(path)) == 0);
	expect_event(id->channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	NEED(id->route.num_paths == 1 && id->route.path_rec);
	CHECK(id->route.path_rec->mtu == IBV_MTU_1024 && id->route.path_rec->traffic_class == 0x44);
	CHECK(id->route.path_rec->flow_label == htobe32(0x12345) && id->route.path_rec->hop_limit == 9);
	CHECK(id->route.path_rec->sgid.raw[15] == 1 && id->route.path_rec->pkey == 0xffff);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(datagrams) == 0);
}

int main(void)
{
	raise_lo();
	channels();
	destroying_waits();
	synchronous();
	migration();
	wrong_callers();
	options();
	return finish();
}
