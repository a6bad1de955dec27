/* Which devices are listed: one that the environment asked for, and the one on lo while it is open. */
#include "check.h"

#include <rdma/rdma_cma.h>

/* The listed names, a space after each. */
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

/* Programs that name no device connect by addresses: to this host as well. */
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

int main(void)
{
	struct ibv_context **contexts;
	struct rdma_cm_id *own, *lo;
	int count;

	if (system("ip link add d0 type veth peer name d1 && ip addr add 10.84.0.1/24 dev d0 && "
		   "ip link set d0 up && ip link set d1 up"))
		return 77;
	setenv("FERROCE_NETDEV", "d0", 1);
	raise_lo();
	CHECK(!strcmp(listed(), "fr1 "));

	own = resolved("10.84.0.1");
	CHECK(!strcmp(ibv_get_device_name(own->verbs->device), "fr1"));
	CHECK(!strcmp(listed(), "fr1 "));
	contexts = rdma_get_devices(&count);
	NEED(contexts);
	CHECK(count == 1 && contexts[0] == own->verbs);
	rdma_free_devices(contexts);

	/* Listed or not, it is there; and a program that has it finds it in the list. */
	lo = resolved("127.0.0.1");
	NEED(lo->verbs);
	CHECK(!strcmp(ibv_get_device_name(lo->verbs->device), "fr0"));
	CHECK(!strcmp(listed(), "fr1 fr0 "));
	CHECK(rdma_destroy_id(lo) == 0 && rdma_destroy_id(own) == 0);
	return finish();
}
