/* Addresses and routes: the device of an address, the data of a resolved id, and names. */
#include "cm.h"

#include <netdb.h>

static void devices(struct ibv_context **shared)
{
	int count = -1;
	struct ibv_context **list = rdma_get_devices(&count);

	NEED(list);
	NEED(count == 1 && list[0] && !list[1]);
	CHECK(strcmp(ibv_get_device_name(list[0]->device), "fr0") == 0);
	*shared = list[0];
	rdma_free_devices(list);
	list = rdma_get_devices(NULL);
	NEED(list);
	CHECK(list[0] == *shared);
	rdma_free_devices(list);
	rdma_free_devices(NULL);
}

static void one(const char *text, int family, struct ibv_context *shared)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL;
	union ibv_gid gid;
	uint8_t tos = 0x28;

	NEED(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1) == 0);
	NEED(resolve_addr(id, text, 7174) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	/* All ids get the same context. */
	CHECK(id->verbs == shared && id->port_num == 1);
	CHECK(id->pd && id->pd->context == shared);
	CHECK(rdma_get_local_addr(id)->sa_family == family && rdma_get_peer_addr(id)->sa_family == family);
	CHECK(rdma_get_dst_port(id) == htons(7174));
	NEED(ibv_query_gid(shared, 1, family == AF_INET ? 0 : 1, &gid) == 0);
	CHECK(memcmp(&id->route.addr.addr.ibaddr.sgid, &gid, 16) == 0);
	CHECK(memcmp(&id->route.addr.addr.ibaddr.dgid, &gid, 16) == 0);
	CHECK(id->route.addr.addr.ibaddr.pkey == 0xffff);
	if (family == AF_INET)
		CHECK(id->route.addr.src_sin.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	else
		CHECK(IN6_IS_ADDR_LOOPBACK(&id->route.addr.src_sin6.sin6_addr));
	CHECK(id->route.num_paths == 0 && !id->route.path_rec);

	NEED(rdma_resolve_route(id, 2000) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	NEED(id->route.num_paths == 1 && id->route.path_rec);
	struct ibv_sa_path_rec *path = id->route.path_rec;

	CHECK(memcmp(&path->sgid, &gid, 16) == 0 && memcmp(&path->dgid, &gid, 16) == 0);
	CHECK(path->mtu == IBV_MTU_4096 && path->mtu_selector == 2);
	CHECK(path->traffic_class == 0x28 && path->hop_limit == 64 && path->pkey == 0xffff);
	/* The upper three bits of the type of service. */
	CHECK(path->sl == 1);
	CHECK(path->reversible == 1 && path->numb_path == 1);
	CHECK(path->packet_life_time == 16 && path->packet_life_time_selector == 2);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

/* Errors of the resolution are in the event, errors of the arguments in the return value. */
static void failures_of(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL;
	struct sockaddr_storage source = address_of("10.9.8.7", 0), to = address_of("127.0.0.1", 7174);

	NEED(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(resolve_addr(id, "203.0.113.1", 7174) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_ERROR, -ENETUNREACH);
	CHECK(rdma_resolve_addr(id, (void *)&source, (void *)&to, 1) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_ERROR, -EADDRNOTAVAIL);
	CHECK(!id->verbs);
	/* 127.0.0.2 is an address of this host, but of no device. */
	source = address_of("127.0.0.2", 0);
	CHECK(rdma_resolve_addr(id, (void *)&source, (void *)&to, 1) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV);
	source = address_of("127.0.0.1", 0);
	CHECK(rdma_resolve_addr(id, (void *)&source, (void *)&to, 1) == 0);
	expect_event(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

static void names(void)
{
	struct rdma_addrinfo hints = {}, *info = NULL;
	struct sockaddr_storage given = address_of("127.0.0.1", 9);
	const struct sockaddr_in *v4;

	NEED(rdma_getaddrinfo("127.0.0.1", "7174", NULL, &info) == 0);
	CHECK(info->ai_family == AF_INET && info->ai_qp_type == IBV_QPT_RC && info->ai_port_space == RDMA_PS_TCP);
	CHECK(info->ai_dst_len == sizeof(*v4) && info->ai_src_len == 0 && !info->ai_src_addr && !info->ai_next);
	v4 = (const void *)info->ai_dst_addr;
	CHECK(v4->sin_port == htons(7174) && v4->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	rdma_freeaddrinfo(info);

	hints.ai_flags = RAI_PASSIVE;
	hints.ai_port_space = RDMA_PS_UDP;
	NEED(rdma_getaddrinfo(NULL, "7175", &hints, &info) == 0);
	CHECK(info->ai_flags == RAI_PASSIVE && info->ai_qp_type == IBV_QPT_UD && info->ai_port_space == RDMA_PS_UDP);
	CHECK(info->ai_dst_len == 0 && info->ai_src_len > 0 && info->ai_src_addr);
	rdma_freeaddrinfo(info);

	hints = (struct rdma_addrinfo){ .ai_flags = RAI_NUMERICHOST | RAI_NOROUTE | RAI_FAMILY, .ai_family = AF_INET6,
					.ai_port_space = RDMA_PS_IB, .ai_qp_type = IBV_QPT_UD,
					.ai_src_addr = (void *)&given, .ai_src_len = sizeof(struct sockaddr_in) };
	NEED(rdma_getaddrinfo("::1", "1", &hints, &info) == 0);
	CHECK(info->ai_family == AF_INET6 && info->ai_port_space == RDMA_PS_IB && info->ai_qp_type == IBV_QPT_UD);
	CHECK(info->ai_src_addr != hints.ai_src_addr && memcmp(info->ai_src_addr, &given, info->ai_src_len) == 0);
	rdma_freeaddrinfo(info);
	CHECK(rdma_getaddrinfo("localhost", "1", &hints, &info) == EAI_NONAME);
	CHECK(rdma_getaddrinfo("127.0.0.1", "1", &hints, &info) == EAI_ADDRFAMILY ||
	      rdma_getaddrinfo("127.0.0.1", "1", &hints, &info) == EAI_NONAME);
	CHECK(rdma_getaddrinfo("127.0.0.1", "no such service", NULL, &info) == EAI_SERVICE);

	/* Without a name the hints have the destination. */
	hints = (struct rdma_addrinfo){ .ai_port_space = RDMA_PS_TCP, .ai_dst_addr = (void *)&given,
					.ai_dst_len = sizeof(struct sockaddr_in) };
	NEED(rdma_getaddrinfo(NULL, NULL, &hints, &info) == 0);
	CHECK(info->ai_dst_len == sizeof(*v4) && memcmp(info->ai_dst_addr, &given, sizeof(*v4)) == 0);
	rdma_freeaddrinfo(info);

	hints.ai_flags = 0x100;
	CHECK(rdma_getaddrinfo("127.0.0.1", "1", &hints, &info) == EAI_BADFLAGS);
	CHECK_MINUS(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);
	CHECK_MINUS(rdma_getaddrinfo("127.0.0.1", "1", NULL, NULL), EINVAL);
	rdma_freeaddrinfo(NULL);
}

int main(void)
{
	struct ibv_context *shared = NULL;

	raise_lo();
	devices(&shared);
	one("127.0.0.1", AF_INET, shared);
	one("0.0.0.0", AF_INET, shared);
	one("::1", AF_INET6, shared);
	one("::", AF_INET6, shared);
	failures_of();
	names();
	return finish();
}
