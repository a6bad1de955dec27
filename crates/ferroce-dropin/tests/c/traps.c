/* Assumptions of compiled C programs beyond the signatures: layouts, tables, lengths. */
#include "check.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>

static struct ibv_context *context;

/* libmlx5 and libefa compare the word behind ibv_device with their own. */
static void device_is_larger_than_it_looks(void)
{
	struct ibv_device *device = context->device;
	void **provider = (void **)((char *)device + sizeof(*device));

	CHECK(sizeof(*device) == 664);
	CHECK(*provider != NULL);
	CHECK(*(void **)*provider == NULL);
	volatile char last = ((char *)device)[711];

	(void)last;
	CHECK(device->_ops._dummy1 == NULL && device->_ops._dummy2 == NULL);
	CHECK(device->node_type == IBV_NODE_CA);
	CHECK(device->transport_type == IBV_TRANSPORT_IB);
	CHECK(!strncmp(device->dev_name, "uverbs", 6));
	CHECK(strstr(device->ibdev_path, device->name) != NULL);
	CHECK(!strcmp(ibv_get_device_name(device), device->name));
	CHECK(ibv_get_device_guid(device) != 0);
	CHECK(ibv_get_device_index(device) == -1);
}

/* A program makes a device structure itself, as sideway's tests do: only its name is valid. */
static void a_device_of_their_own(void)
{
	static struct ibv_device own = { .name = "own" };
	const char *name = ibv_get_device_name(&own);

	CHECK(name && !strcmp(name, "own"));
	CHECK(ibv_get_device_guid(&own) == 0);
	CHECK_NULL(ibv_open_device(&own), EINVAL);
}

/* Vendors' libraries, loaded beside ours, do not take the device for one of theirs. */
static void vendors_leave_it_alone(void)
{
	void *mlx5 = dlopen("libmlx5.so.1", RTLD_NOW), *efa = dlopen("libefa.so.1", RTLD_NOW);
	char attr[256] = {};

	if (mlx5) {
		bool (*is_supported)(struct ibv_device *) = dlsym(mlx5, "mlx5dv_is_supported");
		int (*query)(struct ibv_context *, void *) = dlsym(mlx5, "mlx5dv_query_device");

		CHECK(is_supported && !is_supported(context->device));
		CHECK(query && query(context, attr) == EOPNOTSUPP);
	}
	if (efa) {
		int (*query)(struct ibv_context *, void *, uint32_t) = dlsym(efa, "efadv_query_device");

		CHECK(query && query(context, attr, 16) == EOPNOTSUPP);
	}
}

static void every_slot_of_ops_is_there(void)
{
	void **slots = (void **)&context->ops;

	for (size_t i = 0; i < sizeof(context->ops) / sizeof(void *); i++)
		CHECK(slots[i] != NULL);
	struct ibv_device_attr attr = {};

	CHECK(context->ops._compat_query_device(context, &attr) == 0 && attr.phys_port_cnt == 1);
}

static void verbs_context_is_the_newest(void)
{
	struct verbs_context *verbs = verbs_get_ctx(context);

	NEED(verbs);
	CHECK(context->abi_compat == (void *)UINTPTR_MAX);
	CHECK(verbs->sz == 696);
	CHECK(verbs->_ABI_placeholder3 == 0);
	/* From the structure's front, which this program's header may not declare, to the last function. */
	char *front = (char *)context - (696 - sizeof(*context));

	for (char *slot = front; slot < (char *)&verbs->_ABI_placeholder3; slot += sizeof(void *))
		if (slot != (char *)&verbs->priv)
			CHECK(*(void **)slot != NULL);
	CHECK(verbs_get_ctx_op(context, query_port) != NULL);
	CHECK(verbs_get_ctx_op(context, create_cq_ex) != NULL);
}

/* The inline ibv_query_port passes the program's own size; the exported one writes 48 octets. */
static void query_port_writes_what_it_may(void)
{
	struct verbs_context *verbs = verbs_get_ctx(context);
	int (*exported)(struct ibv_context *, uint8_t, void *) = dlvsym(RTLD_DEFAULT, "ibv_query_port", "IBVERBS_1.1");
	size_t sizes[] = { 52, 56, 48, 40, 4, 0, 64 };

	NEED(exported);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		unsigned char room[80];

		memset(room, 0xa5, sizeof(room));
		CHECK(verbs->query_port(context, 1, (struct ibv_port_attr *)room, sizes[i]) == 0);
		for (size_t at = sizes[i]; at < sizeof(room); at++)
			CHECK(room[at] == 0xa5);
		for (size_t at = 56; at < sizes[i]; at++)
			CHECK(room[at] == 0);
		if (sizes[i] >= 4)
			CHECK(*(uint32_t *)room == IBV_PORT_ACTIVE);
	}
	unsigned char room[80];

	memset(room, 0xa5, sizeof(room));
	CHECK(exported(context, 1, room) == 0);
	for (size_t at = 48; at < sizeof(room); at++)
		CHECK(room[at] == 0xa5);
	CHECK(room[46] == IBV_LINK_LAYER_ETHERNET);

	struct ibv_port_attr port;

	memset(&port, 0xa5, sizeof(port));
	CHECK(ibv_query_port(context, 1, &port) == 0);
	CHECK(port.state == IBV_PORT_ACTIVE && port.phys_state == 5);
	CHECK(port.max_mtu == IBV_MTU_4096 && port.active_mtu >= IBV_MTU_1024);
	CHECK(port.lid == 0 && port.sm_lid == 0 && port.lmc == 0 && port.sm_sl == 0);
	CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.flags == IBV_QPF_GRH_REQUIRED);
	CHECK(port.pkey_tbl_len == 1 && port.gid_tbl_len >= 2);
	CHECK(port.max_msg_sz == 0x80000000u);
	CHECK(ibv_query_port(context, 0, &port) == EINVAL);
	CHECK(ibv_query_port(context, 9, &port) == EINVAL);
	CHECK(ibv_query_port(context, 1, NULL) == EINVAL);
}

static void query_device_ex_writes_what_it_may(void)
{
	struct verbs_context *verbs = verbs_get_ctx(context);
	struct ibv_query_device_ex_input input = { .comp_mask = 0 };
	struct ibv_device_attr_ex attr;
	struct ibv_device_attr plain;

	memset(&attr, 0xa5, sizeof(attr));
	CHECK(ibv_query_device_ex(context, NULL, &attr) == 0);
	CHECK(ibv_query_device(context, &plain) == 0);
	/* The last member is followed by padding. */
	CHECK(!memcmp(&plain, &attr.orig_attr, offsetof(struct ibv_device_attr, phys_port_cnt) + 1));
	CHECK(attr.comp_mask == 0 && attr.max_dm_size == 16 << 20);
	CHECK(attr.phys_port_cnt_ex == 1 && (uint32_t)attr.device_cap_flags_ex == plain.device_cap_flags);
	CHECK(ibv_query_device_ex(context, &input, &attr) == 0);
	input.comp_mask = 1;
	CHECK(verbs->query_device_ex(context, &input, &attr, sizeof(attr)) == EINVAL);

	unsigned char room[512];
	size_t sizes[] = { 236, 240, 300, 400, 480 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		memset(room, 0xa5, sizeof(room));
		CHECK(verbs->query_device_ex(context, NULL, (struct ibv_device_attr_ex *)room, sizes[i]) == 0);
		for (size_t at = sizes[i]; at < sizeof(room); at++)
			CHECK(room[at] == 0xa5);
		for (size_t at = 400; at < sizes[i]; at++)
			CHECK(room[at] == 0);
	}
	CHECK(verbs->query_device_ex(context, NULL, (struct ibv_device_attr_ex *)room, 200) == EINVAL);
	CHECK(verbs->query_device_ex(context, NULL, NULL, 400) == EINVAL);

	CHECK(plain.vendor_id == 0xffffff && plain.vendor_part_id == 0);
	CHECK(plain.phys_port_cnt == 1 && plain.max_cqe >= 65536 && plain.max_qp >= 1024);
	CHECK(plain.node_guid == ibv_get_device_guid(context->device) && plain.sys_image_guid != 0);
	CHECK(plain.max_sge == plain.max_sge_rd && plain.max_sge >= 16);
	CHECK(plain.atomic_cap == IBV_ATOMIC_HCA && plain.fw_ver[0] != 0);
	CHECK(ibv_query_device(context, NULL) == EINVAL);
}

static void gids_are_told_in_four_ways(void)
{
	union ibv_gid gid, zero = {};
	struct ibv_gid_entry entry, table[8];
	unsigned char wide[8 * 40 + 8];

	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
	CHECK(gid.raw[10] == 0xff && gid.raw[11] == 0xff && gid.raw[12] == 127);
	CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 0) == 0);
	CHECK(!memcmp(&entry.gid, &gid, sizeof(gid)));
	CHECK(entry.gid_index == 0 && entry.port_num == 1 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
	CHECK(entry.ndev_ifindex == if_nametoindex("lo"));

	CHECK(ibv_query_gid(context, 1, 700, &gid) == 0);
	CHECK(!memcmp(&gid, &zero, sizeof(gid)));
	CHECK(ibv_query_gid_ex(context, 1, 700, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid_ex(context, 1, 5000, &entry, 0) == EINVAL);
	CHECK(ibv_query_gid_ex(context, 2, 0, &entry, 0) == EINVAL);
	CHECK(ibv_query_gid_ex(context, 257, 0, &entry, 0) == EINVAL);
	CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 1) == EINVAL);
	CHECK(ibv_query_gid_ex(context, 1, 0, NULL, 0) == EINVAL);
	CHECK(_ibv_query_gid_ex(context, 1, 0, &entry, 0, 16) == EINVAL);
	CHECK_MINUS(ibv_query_gid(context, 1, 5000, &gid), EINVAL);
	CHECK_MINUS(ibv_query_gid(context, 1, -1, &gid), EINVAL);
	CHECK_MINUS(ibv_query_gid(context, 3, 0, &gid), EINVAL);
	CHECK_MINUS(ibv_query_gid(context, 1, 0, NULL), EINVAL);

	ssize_t count = ibv_query_gid_table(context, table, 8, 0);

	CHECK(count >= 1);
	CHECK(count == 1 || ibv_query_gid_table(context, table, 1, 0) == -EINVAL);
	CHECK(ibv_query_gid_table(context, table, 0, 0) == -EINVAL);
	CHECK(ibv_query_gid_table(context, table, 8, 4) == -EINVAL);
	CHECK(_ibv_query_gid_table(context, table, 8, 0, 8) == -EINVAL);
	CHECK(_ibv_query_gid_table(context, NULL, 8, 0, 32) == -EINVAL);
	/* A newer program's larger entry. */
	memset(wide, 0xa5, sizeof(wide));
	CHECK(_ibv_query_gid_table(context, (void *)wide, 8, 0, 40) == count);
	CHECK(wide[32] == 0 && wide[39] == 0 && (count > 1 || wide[40] == 0xa5));

	int (*type_of)(struct ibv_context *, uint8_t, unsigned int, unsigned int *) =
		dlvsym(RTLD_DEFAULT, "ibv_query_gid_type", "IBVERBS_PRIVATE_34");
	unsigned int type = 9;

	NEED(type_of);
	CHECK(type_of(context, 1, 0, &type) == 0 && type == 1);
	CHECK_MINUS(type_of(context, 2, 0, &type), EINVAL);

	uint16_t pkey = 0;

	CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK_MINUS(ibv_query_pkey(context, 1, 1, &pkey), EINVAL);
	CHECK_MINUS(ibv_query_pkey(context, 1, -1, &pkey), EINVAL);
	CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0);
	CHECK_MINUS(ibv_get_pkey_index(context, 1, 0x1234), EINVAL);
}

/* NCCL and others load by name and version. */
static void symbols_are_found_by_version(void)
{
	static const struct {
		const char *name, *version;
	} wanted[] = {
		{ "ibv_get_device_list", "IBVERBS_1.1" },   { "ibv_reg_mr_iova2", "IBVERBS_1.8" },
		{ "ibv_query_ece", "IBVERBS_1.10" },	    { "ibv_reg_dmabuf_mr", "IBVERBS_1.12" },
		{ "ibv_query_port_speed", "IBVERBS_1.16" }, { "rdma_create_id", "RDMACM_1.0" },
		{ "umad_init", "IBUMAD_1.0" },
	};
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
		CHECK(dlvsym(RTLD_DEFAULT, wanted[i].name, wanted[i].version) != NULL);
	CHECK(dlsym(RTLD_DEFAULT, "ibv_query_port") == dlvsym(RTLD_DEFAULT, "ibv_query_port", "IBVERBS_1.1"));

	int (*of_2005)(struct ibv_context *, struct ibv_device_attr *) =
		dlvsym(RTLD_DEFAULT, "ibv_query_device", "IBVERBS_1.0");
	NEED(of_2005);
	CHECK(of_2005(context, NULL) == ENOSYS);
	int (*speed)(struct ibv_context *, uint32_t, uint64_t *) =
		dlvsym(RTLD_DEFAULT, "ibv_query_port_speed", "IBVERBS_1.16");
	uint64_t value = 0;

	CHECK(speed(context, 1, &value) == 0 && value > 0);
	CHECK(speed(context, 2, &value) == EINVAL && speed(context, 257, &value) == EINVAL);
}

static void descriptors_are_real_and_distinct(void)
{
	struct ibv_comp_channel *one = ibv_create_comp_channel(context);
	struct ibv_comp_channel *two = ibv_create_comp_channel(context);

	NEED(one && two);
	CHECK(fcntl(context->cmd_fd, F_GETFD) == FD_CLOEXEC);
	CHECK(fcntl(context->async_fd, F_GETFD) == FD_CLOEXEC);
	CHECK(fcntl(one->fd, F_GETFD) == FD_CLOEXEC);
	CHECK(one->fd != two->fd && one->fd != context->async_fd && context->cmd_fd != context->async_fd);
	CHECK(ibv_destroy_comp_channel(one) == 0);
	CHECK(ibv_destroy_comp_channel(two) == 0);
	CHECK(context->num_comp_vectors >= 1);
}

static void locks_of_the_headers_work(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);

	NEED(cq);
	CHECK(pthread_mutex_lock(&cq->mutex) == 0 && pthread_mutex_unlock(&cq->mutex) == 0);
	CHECK(pthread_cond_signal(&cq->cond) == 0);
	CHECK(pthread_mutex_lock(&context->mutex) == 0 && pthread_mutex_unlock(&context->mutex) == 0);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	/* With a comp_mask of PD alone the header calls the old function with the beginning of the new structure. */
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd, .create_flags = 0x12345678,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);

	NEED(qp);
	CHECK(attr.comp_mask == IBV_QP_INIT_ATTR_PD && attr.pd == pd && attr.create_flags == 0x12345678);
	CHECK(ibv_qp_to_qp_ex(qp) == NULL);
	CHECK(pthread_mutex_lock(&qp->mutex) == 0 && pthread_mutex_unlock(&qp->mutex) == 0);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
}

static void fork_is_safe_without_help(void)
{
	CHECK(ibv_fork_init() == 0);
	CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
}

/* Each function pointer of this version's header whose call is not implemented fails with an error. */
static void unimplemented_calls_fail(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_srq_init_attr_ex tags = {
		.attr = { .max_wr = 1, .max_sge = 1 }, .pd = pd, .srq_type = IBV_SRQT_TM,
		.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_TM,
	};
	struct ibv_counters_init_attr counters = {};
	struct ibv_wq_init_attr wq = {};

	NEED(pd);
	CHECK_NULL(ibv_create_srq_ex(context, &tags), EOPNOTSUPP);
	CHECK_NULL(ibv_create_counters(context, &counters), EOPNOTSUPP);
	CHECK_NULL(ibv_create_wq(context, &wq), EOPNOTSUPP);
	CHECK_NULL(ibv_import_device(0), EOPNOTSUPP);
	CHECK(ibv_dealloc_pd(pd) == 0);
}

static void two_contexts_are_independent(void)
{
	struct ibv_context *other = ibv_open_device(context->device);

	NEED(other && other != context);
	CHECK(other->async_fd != context->async_fd && other->cmd_fd != context->cmd_fd);
	CHECK(ibv_close_device(other) == 0);
	CHECK(ibv_close_device(other) == EINVAL);
	CHECK_NULL(ibv_alloc_pd(other), EINVAL);
	struct ibv_device_attr attr;

	CHECK(ibv_query_device(context, &attr) == 0);
}

int main(void)
{
	context = open_device();
	device_is_larger_than_it_looks();
	a_device_of_their_own();
	vendors_leave_it_alone();
	every_slot_of_ops_is_there();
	verbs_context_is_the_newest();
	query_port_writes_what_it_may();
	query_device_ex_writes_what_it_may();
	gids_are_told_in_four_ways();
	symbols_are_found_by_version();
	descriptors_are_real_and_distinct();
	locks_of_the_headers_work();
	fork_is_safe_without_help();
	unimplemented_calls_fail();
	two_contexts_are_independent();
	CHECK(ibv_close_device(context) == 0);
	return finish();
}
