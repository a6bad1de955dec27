/*
 * librpma: a WRITE to another process's memory, a flush and a READ, by librpma's verbs on connections.
 *
 *   librpma target HOST PORT
 *   librpma initiator HOST PORT
 *
 * The target compares what was written, the initiator what it reads back; each ends with 1 if it differs. The initiator
 * prints "data ok".
 */
#include <librpma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 1 << 20 };

static struct rpma_peer *peer;
static struct rpma_mr_local *region;
static struct rpma_conn *connection;
static unsigned char *memory;

static void must(int result, const char *what)
{
	if (result) {
		fprintf(stderr, "%s: %s\n", what, rpma_err_2str(result));
		exit(1);
	}
}

static unsigned char octet(size_t at) { return (unsigned char)(at * 13 + (at >> 9)); }

static void compare(const char *who)
{
	for (size_t at = 0; at < SIZE; at++)
		if (memory[at] != octet(at)) {
			fprintf(stderr, "%s: octet %zu differs\n", who, at);
			exit(1);
		}
}

static void event(enum rpma_conn_event wanted)
{
	enum rpma_conn_event event;

	must(rpma_conn_next_event(connection, &event), "rpma_conn_next_event");
	if (event != wanted) {
		fprintf(stderr, "event %s\n", rpma_utils_conn_event_2str(event));
		exit(1);
	}
}

static void open_region(const char *host, enum rpma_util_ibv_context_type type, int usage)
{
	struct ibv_context *context;

	must(rpma_utils_get_ibv_context(host, type, &context), "rpma_utils_get_ibv_context");
	must(rpma_peer_new(context, &peer), "rpma_peer_new");
	memory = aligned_alloc(4096, SIZE);
	if (!memory) exit(1);
	memset(memory, 0, SIZE);
	must(rpma_mr_reg(peer, memory, SIZE, usage, &region), "rpma_mr_reg");
}

static void target(const char *host, const char *port)
{
	struct rpma_ep *endpoint;
	struct rpma_conn_req *request;
	char descriptor[256];
	struct rpma_conn_private_data data = {descriptor, 0};
	size_t length;

	open_region(host, RPMA_UTIL_IBV_CONTEXT_LOCAL, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY);
	must(rpma_mr_get_descriptor_size(region, &length), "rpma_mr_get_descriptor_size");
	if (length > sizeof descriptor) exit(1);
	must(rpma_mr_get_descriptor(region, descriptor), "rpma_mr_get_descriptor");
	data.len = length;
	must(rpma_ep_listen(peer, host, port, &endpoint), "rpma_ep_listen");
	must(rpma_ep_next_conn_req(endpoint, NULL, &request), "rpma_ep_next_conn_req");
	must(rpma_conn_req_connect(&request, &data, &connection), "rpma_conn_req_connect");
	event(RPMA_CONN_ESTABLISHED);
	event(RPMA_CONN_CLOSED);
	must(rpma_conn_disconnect(connection), "rpma_conn_disconnect");
	must(rpma_conn_delete(&connection), "rpma_conn_delete");
	compare("target");
	must(rpma_ep_shutdown(&endpoint), "rpma_ep_shutdown");
}

/* Waits for the completion of the request `number`. */
static void completion(uint64_t number)
{
	struct rpma_cq *queue;
	struct ibv_wc done;

	must(rpma_conn_get_cq(connection, &queue), "rpma_conn_get_cq");
	must(rpma_cq_wait(queue), "rpma_cq_wait");
	must(rpma_cq_get_wc(queue, 1, &done, NULL), "rpma_cq_get_wc");
	if (done.status != IBV_WC_SUCCESS || done.wr_id != number) {
		fprintf(stderr, "completion %llu: %s\n", (unsigned long long)done.wr_id, ibv_wc_status_str(done.status));
		exit(1);
	}
}

static void initiator(const char *host, const char *port)
{
	struct rpma_conn_req *request;
	struct rpma_conn_private_data data;
	struct rpma_mr_remote *remote;

	open_region(host, RPMA_UTIL_IBV_CONTEXT_REMOTE, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_READ_DST);
	must(rpma_conn_req_new(peer, host, port, NULL, &request), "rpma_conn_req_new");
	must(rpma_conn_req_connect(&request, NULL, &connection), "rpma_conn_req_connect");
	event(RPMA_CONN_ESTABLISHED);
	must(rpma_conn_get_private_data(connection, &data), "rpma_conn_get_private_data");
	must(rpma_mr_remote_from_descriptor(data.ptr, data.len, &remote), "rpma_mr_remote_from_descriptor");
	for (size_t at = 0; at < SIZE; at++) memory[at] = octet(at);
	must(rpma_write(connection, remote, 0, region, 0, SIZE, RPMA_F_COMPLETION_ON_ERROR, NULL), "rpma_write");
	must(rpma_flush(connection, remote, 0, SIZE, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, (void *)5), "rpma_flush");
	completion(5);
	memset(memory, 0, SIZE);
	must(rpma_read(connection, region, 0, remote, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, (void *)6), "rpma_read");
	completion(6);
	compare("initiator");
	must(rpma_mr_remote_delete(&remote), "rpma_mr_remote_delete");
	must(rpma_conn_disconnect(connection), "rpma_conn_disconnect");
	event(RPMA_CONN_CLOSED);
	must(rpma_conn_delete(&connection), "rpma_conn_delete");
	printf("data ok\n");
}

int main(int count, char **words)
{
	if (count != 4) return 2;
	if (!strcmp(words[1], "target")) target(words[2], words[3]);
	else initiator(words[2], words[3]);
	must(rpma_mr_dereg(&region), "rpma_mr_dereg");
	must(rpma_peer_delete(&peer), "rpma_peer_delete");
	free(memory);
	return 0;
}
