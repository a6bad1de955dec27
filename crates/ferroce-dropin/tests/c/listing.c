/* Listed devices: those that the environment selects, and the one on lo while it is open; and the default GID. */
#include "check.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

/* The listed names, with a space after each. */
static const char *listed(void)
{
	static char names[256];
	struct ibv_device **list = ibv_get_device_list(NULL);

	NEED(list);
	names[0] = 0;
	for (int i = 0; list[i]; i++)
		sprintf(strchr(names, 0), "%s ", ibv_get_device_name(list[i]));
	ibv_free_device_list(list);
	return names;
}

/* Programs that name no device connect by addresses, to this host as well. */
static struct rdma_cm_id *resolved(const char *address)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info;
	struct rdma_cm_id *id;

	NEED(rdma_getaddrinfo(address, "7471", &hints, &info) == 0);
	NEED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(id, NULL, info->ai_dst_addr, 2000) == 0);
	rdma_freeaddrinfo(info);
	return id;
}

/* With IPv6 off, index 0 is still the link-local GID of the hardware address; it cannot send. */
static void default_gid(struct ibv_context *context)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_gid_entry entry;
	union ibv_gid gid, want;

	NEED(pd && inet_pton(AF_INET6, "fe80::fc:ff:fe00:1", want.raw) == 1);
	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0 && !memcmp(gid.raw, want.raw, 16));
	CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
	NEED(inet_pton(AF_INET6, "::ffff:10.84.0.1", want.raw) == 1);
	CHECK(ibv_query_gid(context, 1, 1, &gid) == 0 && !memcmp(gid.raw, want.raw, 16));
	NEED(inet_pton(AF_INET6, "fe80::fc:ff:fe00:2", attr.grh.dgid.raw) == 1);
	errno = 0;
	CHECK(!ibv_create_ah(pd, &attr) && errno == EADDRNOTAVAIL);
	CHECK(ibv_dealloc_pd(pd) == 0);
}

int main(void)
{
	struct ibv_context **contexts;
	struct rdma_cm_id *own, *lo;
	int count;

	if (system("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6 && "
		   "ip link add d0 address 02:fc:00:00:00:01 type veth peer name d1 && ip addr add 10.84.0.1/24 dev d0 && "
		   "ip link set d0 up && ip link set d1 up"))
		return 77;
	setenv("FERROCE_NETDEV", "d0", 1);
	raise_lo();
	CHECK(!strcmp(listed(), "fr1 "));

	own = resolved("10.84.0.1");
	CHECK(!strcmp(ibv_get_device_name(own->verbs->device), "fr1"));
	CHECK(!strcmp(listed(), "fr1 "));
	default_gid(own->verbs);
	contexts = rdma_get_devices(&count);
	NEED(contexts);
	CHECK(count == 1 && contexts[0] == own->verbs);
	rdma_free_devices(contexts);

	/* The device can be opened even if it is not listed; while it is open, the program's list includes it. */
	lo = resolved("127.0.0.1");
	NEED(lo->verbs);
	CHECK(!strcmp(ibv_get_device_name(lo->verbs->device), "fr0"));
	CHECK(!strcmp(listed(), "fr1 fr0 "));
	CHECK(rdma_destroy_id(lo) == 0 && rdma_destroy_id(own) == 0);
	return finish();
}
