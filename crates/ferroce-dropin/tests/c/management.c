/* libibumad: devices and ports as in ibstat, management datagrams and their buffers, and wrong callers. */
#include "check.h"

#include <infiniband/umad.h>

/* A call that returns a negative errno and sets errno. */
#define CHECK_NEGATIVE(call, want)                                                               \
	do {                                                                                     \
		errno = 0;                                                                       \
		int got = (call);                                                                \
		CHECK(got == -(want));                                                           \
		CHECK(errno == (want));                                                          \
	} while (0)

static void check_port(const umad_port_t *port, struct ibv_context *context, __be64 guid)
{
	struct ibv_port_attr attr;

	NEED(ibv_query_port(context, 1, &attr) == 0);
	CHECK(!strcmp(port->ca_name, "fr0") && port->portnum == 1);
	CHECK(port->base_lid == 0 && port->lmc == 0 && port->sm_lid == 0 && port->sm_sl == 0);
	CHECK(port->state == attr.state && port->phys_state == attr.phys_state);
	CHECK(be32toh(port->capmask) == attr.port_cap_flags);
	/* Four lanes of 25 Gb/s. */
	CHECK(port->rate == 100 && attr.active_width == 2 && attr.active_speed == 32);
	CHECK(port->port_guid == guid && be64toh(port->gid_prefix) == 0xfe80000000000000);
	CHECK(port->pkeys_size == 1 && port->pkeys && port->pkeys[0] == 0xffff);
	CHECK(!strcmp(port->link_layer, "Ethernet"));
}

static void devices(struct ibv_context *context)
{
	char names[UMAD_MAX_DEVICES][UMAD_CA_NAME_LEN];
	struct ibv_device_attr device;
	__be64 guids[3] = { 1, 1, 1 };
	umad_ca_t ca = {};

	NEED(ibv_query_device(context, &device) == 0);
	CHECK(umad_init() == 0);
	memset(names, '#', sizeof(names));
	CHECK(umad_get_cas_names(names, UMAD_MAX_DEVICES) == 1);
	CHECK(!strcmp(names[0], "fr0") && names[1][0] == '#');
	CHECK(umad_get_cas_names(names, 0) == 0);
	CHECK_NEGATIVE(umad_get_cas_names(names, -1), EINVAL);
	CHECK_NEGATIVE(umad_get_cas_names(NULL, 1), EINVAL);

	CHECK(umad_get_ca_portguids("fr0", guids, 3) == 2);
	CHECK(guids[0] == 0 && guids[1] == device.node_guid && guids[2] == 1);
	CHECK(umad_get_ca_portguids(NULL, NULL, 0) == 0);
	CHECK_NEGATIVE(umad_get_ca_portguids("fr0", guids, 1), ENOMEM);
	CHECK_NEGATIVE(umad_get_ca_portguids("mlx5_0", guids, 3), ENODEV);

	for (int named = 0; named < 2; named++) {
		NEED(umad_get_ca(named ? "fr0" : NULL, &ca) == 0);
		CHECK(!strcmp(ca.ca_name, "fr0") && ca.node_type == IBV_NODE_CA && ca.numports == 1);
		CHECK(!strcmp(ca.fw_ver, device.fw_ver) && !strcmp(ca.ca_type, "ferroce"));
		CHECK(ca.node_guid == device.node_guid && ca.system_guid == device.sys_image_guid);
		NEED(!ca.ports[0] && ca.ports[1] && !ca.ports[2]);
		check_port(ca.ports[1], context, device.node_guid);
		CHECK(umad_release_ca(&ca) == 0 && !ca.ports[1]);
		CHECK(umad_release_ca(&ca) == 0);
	}
	CHECK_NEGATIVE(umad_get_ca("mlx5_0", &ca), ENODEV);
	CHECK_NEGATIVE(umad_get_ca("fr0", NULL), EINVAL);
	CHECK_NEGATIVE(umad_release_ca(NULL), ENODEV);

	for (int number = 0; number < 2; number++) {
		umad_port_t port;

		memset(&port, '#', sizeof(port));
		NEED(umad_get_port(number ? "fr0" : NULL, number, &port) == 0);
		check_port(&port, context, device.node_guid);
		CHECK(umad_release_port(&port) == 0 && !port.pkeys);
	}
	umad_port_t port;

	CHECK_NEGATIVE(umad_get_port("fr0", 2, &port), EINVAL);
	CHECK_NEGATIVE(umad_get_port("fr0", -1, &port), EINVAL);
	CHECK_NEGATIVE(umad_get_port("fr0", 1, NULL), EINVAL);
	CHECK_NEGATIVE(umad_get_port("mlx5_0", 1, &port), ENODEV);
	CHECK_NEGATIVE(umad_release_port(NULL), ENODEV);

	char path[64];

	CHECK_NEGATIVE(umad_get_issm_path("fr0", 1, path, sizeof(path)), EINVAL);
	CHECK_NEGATIVE(umad_get_issm_path("mlx5_0", 1, path, sizeof(path)), ENODEV);
}

static void lists(void)
{
	struct umad_device_node *list = umad_get_ca_device_list();

	NEED(list);
	CHECK(!strcmp(list->ca_name, "fr0") && !list->next);
	CHECK(umad_sort_ca_device_list(&list, 0) == 0);
	CHECK(list && !list->next);
	umad_free_ca_device_list(list);
	umad_free_ca_device_list(NULL);
	CHECK(umad_sort_ca_device_list(NULL, 0) == EINVAL);
	list = NULL;
	CHECK(umad_sort_ca_device_list(&list, 0) == 0 && !list);

	/* The call only sorts, so the nodes may be any. */
	struct umad_device_node nodes[4] = {
		{ &nodes[1], "c" }, { &nodes[2], "b" }, { &nodes[3], "d" }, { NULL, "a" },
	};
	static const char *const want[] = { "b", "c", "d", "a", "a", "b", "c", "d" };

	list = nodes;
	CHECK(umad_sort_ca_device_list(&list, 3) == 0);
	for (int i = 0; i < 8; i++) {
		NEED(list);
		CHECK(!strcmp(list->ca_name, want[i]));
		if (i == 3) {
			CHECK(!list->next);
			list = &nodes[1];
			CHECK(umad_sort_ca_device_list(&list, 0) == 0);
		} else {
			list = list->next;
		}
	}
	CHECK(!list);
}

static void buffers(void)
{
	/* Unaligned, as in a program's own packed structure. */
	struct __attribute__((packed)) {
		char shift;
		struct ib_user_mad umad;
		char mad[256];
		char end;
	} buffer;
	void *umad = &buffer.umad;
	ib_mad_addr_t from = {
		.grh_present = 7, .gid_index = 9, .hop_limit = 64, .traffic_class = 33,
		.flow_label = 0x12345,
	};

	memset(&buffer, 0, sizeof(buffer));
	buffer.shift = buffer.end = '#';
	CHECK(umad_size() == 64 && sizeof(buffer.umad) == 64);
	CHECK(umad_get_mad(umad) == buffer.mad);
	CHECK((void *)umad_get_mad_addr(umad) == (char *)umad + offsetof(struct ib_user_mad, addr));
	CHECK(umad_set_addr(umad, 0x1234, 1, 3, 0x80010000) == 0);
	CHECK(buffer.umad.addr.lid == htobe16(0x1234) && buffer.umad.addr.qpn == htobe32(1));
	CHECK(buffer.umad.addr.qkey == htobe32(0x80010000) && buffer.umad.addr.sl == 3);
	CHECK(umad_set_addr_net(umad, 0x1234, 1, 4, 0x80010000) == 0);
	CHECK(buffer.umad.addr.lid == 0x1234 && buffer.umad.addr.qpn == 1);
	CHECK(buffer.umad.addr.qkey == 0x80010000 && buffer.umad.addr.sl == 4);
	CHECK(umad_set_pkey(umad, 5) == 0 && umad_get_pkey(umad) == 5);

	memset(from.gid, 0xab, sizeof(from.gid));
	buffer.umad.addr.gid_index = 2;
	CHECK(umad_set_grh(umad, &from) == 0);
	CHECK(buffer.umad.addr.grh_present == 1 && buffer.umad.addr.gid_index == 2);
	CHECK(buffer.umad.addr.hop_limit == 64 && buffer.umad.addr.traffic_class == 33);
	CHECK(buffer.umad.addr.flow_label == htobe32(0x12345));
	CHECK(!memcmp(buffer.umad.addr.gid, from.gid, 16));
	CHECK(umad_set_grh(umad, NULL) == 0 && buffer.umad.addr.grh_present == 0);
	buffer.umad.status = ETIMEDOUT;
	CHECK(umad_status(umad) == ETIMEDOUT);
	CHECK(buffer.shift == '#' && buffer.end == '#');

	CHECK_NULL(umad_get_mad(NULL), EINVAL);
	CHECK_NULL(umad_get_mad_addr(NULL), EINVAL);
	CHECK_NEGATIVE(umad_set_addr(NULL, 0, 0, 0, 0), EINVAL);
	CHECK_NEGATIVE(umad_set_grh(NULL, &from), EINVAL);
	CHECK_NEGATIVE(umad_get_pkey(NULL), EINVAL);
	CHECK_NEGATIVE(umad_status(NULL), EINVAL);
	CHECK(umad_debug(-1) == 0 && umad_debug(2) == 2 && umad_debug(-1) == 2);
}

/* A request of the performance class to the port itself, and datagrams of other kinds. */
static void datagrams(void)
{
	static _Alignas(8) char umad[64 + 256], answer[64 + 256];
	unsigned char *mad = umad_get_mad(umad), *got = umad_get_mad(answer);
	int length = 256, port, agent, other;
	uint32_t number;
	struct umad_reg_attr attr = { .mgmt_class = 0x03, .mgmt_class_version = 2 };

	CHECK_NEGATIVE(umad_open_port("mlx5_0", 1), ENODEV);
	CHECK_NEGATIVE(umad_open_port("fr0", 2), EINVAL);
	NEED((port = umad_open_port("fr0", 1)) >= 0);
	CHECK(umad_get_fd(port) >= 0);
	CHECK_NEGATIVE(umad_get_fd(-1), EINVAL);
	NEED((agent = umad_register(port, 0x04, 1, 0, NULL)) >= 0);
	CHECK_NEGATIVE(umad_register(port, 0, 1, 0, NULL), EINVAL);
	CHECK_NEGATIVE(umad_register(port, 256, 1, 0, NULL), EINVAL);
	CHECK_NEGATIVE(umad_register(port + 1000, 0x04, 1, 0, NULL), EINVAL);
	CHECK_NEGATIVE(umad_register_oui(port, 0x04, 0, (uint8_t[3]){ 1, 2, 3 }, NULL), EINVAL);
	CHECK_NEGATIVE(umad_register_oui(port, 0x30, 0, NULL, NULL), EINVAL);
	CHECK(umad_register2(port, &attr, NULL) == EINVAL && umad_register2(port, NULL, &number) == EINVAL);
	NEED(umad_register2(port, &attr, &number) == 0);
	CHECK((int)number != agent);

	CHECK_NEGATIVE(umad_recv(port, answer, &length, 0), EAGAIN);
	CHECK_NEGATIVE(umad_recv(port, answer, &length, 1), ETIMEDOUT);
	CHECK_NEGATIVE(umad_poll(port, 1), ETIMEDOUT);

	/* Get(PortCounters) of port 1. */
	mad[0] = mad[2] = mad[3] = 1;
	mad[1] = 0x04;
	mad[17] = 0x12;
	mad[65] = 1;
	mad[15] = 42;
	NEED(umad_send(port, agent, umad, 256, 100, 3) == 0);
	CHECK(umad_poll(port, 1000) == 0);
	length = 255;
	CHECK_NEGATIVE(umad_recv(port, answer, &length, -1), ENOSPC);
	CHECK(length == 256);
	CHECK(umad_recv(port, answer, &length, -1) == agent && length == 256);
	CHECK(umad_status(answer) == 0 && got[3] == 0x81 && got[15] == 42 && !got[4] && !got[5]);
	CHECK_NEGATIVE(umad_recv(port, answer, &length, 0), EAGAIN);

	CHECK_NEGATIVE(umad_send(port, agent, NULL, 256, 0, 0), EINVAL);
	CHECK_NEGATIVE(umad_send(port, agent, umad, 257, 0, 0), EINVAL);
	CHECK_NEGATIVE(umad_send(port, agent, umad, 23, 0, 0), EINVAL);
	CHECK_NEGATIVE(umad_send(port, agent, umad, -1, 0, 0), EINVAL);
	CHECK_NEGATIVE(umad_send(port, 77, umad, 256, 0, 0), EINVAL);
	CHECK_NEGATIVE(umad_recv(port, NULL, &length, 0), EINVAL);
	CHECK_NEGATIVE(umad_recv(port, answer, NULL, 0), EINVAL);
	/* To another address. */
	umad_set_addr(umad, 5, 1, 0, 0x80010000);
	CHECK_NEGATIVE(umad_send(port, agent, umad, 256, 0, 0), EINVAL);
	umad_set_addr(umad, 0, 1, 0, 0x80010000);
	/* A class without an agent: the request is returned. */
	mad[1] = 0x03;
	NEED(umad_send(port, (int)number, umad, 256, 1, 0) == 0);
	length = 256;
	CHECK(umad_recv(port, answer, &length, -1) == (int)number && umad_status(answer) == ETIMEDOUT);
	CHECK(got[1] == 0x03 && got[3] == 1);

	NEED((other = umad_open_port(NULL, 0)) >= 0 && other != port);
	CHECK_NEGATIVE(umad_unregister(other, agent), EINVAL);
	CHECK(umad_unregister(port, agent) == 0);
	CHECK_NEGATIVE(umad_unregister(port, agent), EINVAL);
	CHECK(umad_close_port(port) == 0 && umad_close_port(other) == 0);
	CHECK_NEGATIVE(umad_close_port(port), EINVAL);
}

int main(void)
{
	struct ibv_context *context = open_device();

	devices(context);
	lists();
	buffers();
	datagrams();
	CHECK(umad_done() == 0);
	CHECK(ibv_close_device(context) == 0);
	return finish();
}
