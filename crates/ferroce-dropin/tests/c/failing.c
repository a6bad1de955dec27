/* Each call that is judged at its entry fails as a rule says, before it looks at an argument; the other calls are in faulted.c. `WORDS` has
 * the words of such calls, and each must have a row. */
#include "cm.h"

#include <dlfcn.h>

static char seen[8192];

/* As the man pages have it: 0 or an errno, a pointer, -1, a negative errno. */
#define C(word, call) row(word, (errno = 0, (call) == ERANGE))
#define P(word, call) row(word, (errno = 0, (call) == NULL))
#define M(word, call) row(word, (errno = 0, (call) == -1))
#define N(word, call) row(word, (errno = 0, (call) == -ERANGE))

static void row(const char *word, int returned)
{
	if (!returned || errno != ERANGE) {
		fprintf(stderr, "%s did not fail as the rule says: errno %d\n", word, errno);
		failures++;
	}
	strcat(strcat(seen, word), "|");
}

/* Functions of later releases, which the installed library may lack. Spare arguments do no harm. */
static int later(const char *name)
{
	int (*call)(void *, void *, void *, void *, void *) = (int (*)(void *, void *, void *, void *, void *))dlsym(RTLD_DEFAULT, name);

	NEED(call);
	return call(NULL, NULL, NULL, NULL, NULL);
}

static void *later_pointer(const char *name)
{
	void *(*call)(void *, void *, void *) = (void *(*)(void *, void *, void *))dlsym(RTLD_DEFAULT, name);

	NEED(call);
	return call(NULL, NULL, NULL);
}

static int query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed)
{
	int (*call)(struct ibv_context *, uint32_t, uint64_t *) =
		(int (*)(struct ibv_context *, uint32_t, uint64_t *))dlsym(RTLD_DEFAULT, "ibv_query_port_speed");

	NEED(call);
	return call(context, port, speed);
}

static void each(struct ibv_context *context, struct ibv_dm *dm)
{
	struct verbs_context *slots = verbs_get_ctx(context);

	P("get_device_list", ibv_get_device_list(NULL));
	C("close_device", ibv_close_device(NULL));
	P("import_device", ibv_import_device(-1));
	P("import_pd", ibv_import_pd(NULL, 0));
	P("import_mr", ibv_import_mr(NULL, 0));
	P("import_dm", ibv_import_dm(NULL, 0));
	C("dealloc_pd", ibv_dealloc_pd(NULL));
	C("destroy_comp_channel", ibv_destroy_comp_channel(NULL));
	C("destroy_cq", ibv_destroy_cq(NULL));
	C("modify_cq", slots->modify_cq(NULL, NULL));
	C("destroy_srq", ibv_destroy_srq(NULL));
	C("modify_srq", ibv_modify_srq(NULL, NULL, 0));
	C("query_srq", ibv_query_srq(NULL, NULL));
	C("get_srq_num", slots->get_srq_num(NULL, NULL));
	C("destroy_qp", ibv_destroy_qp(NULL));
	P("open_qp", slots->open_qp(context, NULL));
	C("attach_mcast", ibv_attach_mcast(NULL, NULL, 0));
	C("detach_mcast", ibv_detach_mcast(NULL, NULL, 0));
	C("destroy_ah", ibv_destroy_ah(NULL));
	M("init_ah_from_wc", ibv_init_ah_from_wc(NULL, 1, NULL, NULL, NULL));
	M("get_async_event", ibv_get_async_event(NULL, NULL));
	M("get_cq_event", ibv_get_cq_event(NULL, NULL, NULL));
	M("query_pkey", ibv_query_pkey(NULL, 1, 0, NULL));
	M("get_pkey_index", ibv_get_pkey_index(NULL, 1, 0));
	C("query_port_speed", query_port_speed(NULL, 1, NULL));
	N("query_gid_table", _ibv_query_gid_table(NULL, NULL, 0, 0, 0));
	C("query_rt_values", slots->query_rt_values(context, NULL));
	M("rereg_mr", ibv_rereg_mr(NULL, 0, NULL, NULL, 0, 0));
	C("advise_mr", slots->advise_mr(NULL, 0, 0, NULL, 0));
	C("dealloc_mw", context->ops.dealloc_mw(NULL));
	C("bind_mw", context->ops.bind_mw(NULL, NULL, NULL));
	C("post_srq_recv", context->ops.post_srq_recv(NULL, NULL, NULL));
	P("alloc_dm", slots->alloc_dm(context, NULL));
	C("free_dm", slots->free_dm(NULL));
	C("memcpy_to_dm", dm->memcpy_to_dm(dm, 0, NULL, 0));
	C("memcpy_from_dm", dm->memcpy_from_dm(NULL, dm, 0, 0));
	P("alloc_td", slots->alloc_td(context, NULL));
	C("dealloc_td", slots->dealloc_td(NULL));
	P("alloc_parent_domain", slots->alloc_parent_domain(context, NULL));
	P("open_xrcd", slots->open_xrcd(context, NULL));
	C("close_xrcd", slots->close_xrcd(NULL));
	P("create_flow", slots->ibv_create_flow(NULL, NULL));
	C("destroy_flow", slots->ibv_destroy_flow(NULL));
	M("read_sysfs_file", later("ibv_read_sysfs_file"));
	P("create_event_channel", rdma_create_event_channel());
	M("create_id", rdma_create_id(NULL, NULL, NULL, RDMA_PS_TCP));
	M("destroy_id", rdma_destroy_id(NULL));
	M("migrate_id", rdma_migrate_id(NULL, NULL));
	M("bind_addr", rdma_bind_addr(NULL, NULL));
	M("get_cm_event", rdma_get_cm_event(NULL, NULL));
	M("ack_cm_event", rdma_ack_cm_event(NULL));
	M("get_request", rdma_get_request(NULL, NULL));
	M("establish", rdma_establish(NULL));
	M("notify", rdma_notify(NULL, 0));
	M("set_option", rdma_set_option(NULL, 0, 0, NULL, 0));
	M("init_qp_attr", rdma_init_qp_attr(NULL, NULL, NULL));
	M("create_ep", rdma_create_ep(NULL, NULL, NULL, NULL));
	M("getaddrinfo", rdma_getaddrinfo(NULL, NULL, NULL, NULL));
	M("join_multicast", rdma_join_multicast(NULL, NULL, NULL));
	M("leave_multicast", rdma_leave_multicast(NULL, NULL));
	M("set_local_ece", rdma_set_local_ece(NULL, NULL));
	M("get_remote_ece", rdma_get_remote_ece(NULL, NULL));
	P("get_devices", rdma_get_devices(NULL));
	M("resolve_addrinfo", later("rdma_resolve_addrinfo"));
	M("query_addrinfo", later("rdma_query_addrinfo"));
	M("write_cm_event", later("rdma_write_cm_event"));
	C("query_comp_cntr_caps", later("_ibv_query_comp_cntr_caps"));
	P("create_comp_cntr", later_pointer("ibv_create_comp_cntr"));
	C("destroy_comp_cntr", later("ibv_destroy_comp_cntr"));
	C("set_comp_cntr", later("ibv_set_comp_cntr"));
	C("set_comp_cntr", later("ibv_set_err_comp_cntr"));
	C("inc_comp_cntr", later("ibv_inc_comp_cntr"));
	C("inc_comp_cntr", later("ibv_inc_err_comp_cntr"));
	C("read_comp_cntr", later("ibv_read_comp_cntr"));
	C("read_comp_cntr", later("ibv_read_err_comp_cntr"));
	C("qp_attach_comp_cntr", later("ibv_qp_attach_comp_cntr"));
	P("alloc_buf", later_pointer("ibv_alloc_buf"));
	M("export_buf_dmabuf_fd", later("ibv_export_buf_dmabuf_fd"));
}

int main(void)
{
	const char *words = getenv("WORDS");
	struct ibv_alloc_dm_attr attr = { .length = 64 };

	NEED(words);
	struct ibv_context *context = open_device();
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);

	NEED(dm);
	each(context, dm);
	for (char *word = strtok(strdup(words), "|"); word; word = strtok(NULL, "|")) {
		char row[64];

		snprintf(row, sizeof(row), "%s|", word);
		const char *found = strstr(seen, row);

		if (!found) {
			fprintf(stderr, "%s has no row\n", word);
			failures++;
		}
	}
	return finish();
}
