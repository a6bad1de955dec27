/*
 * nvme_target HOST PORT: a target of NVMe over RDMA with one disk of 64 MiB in memory, for one controller with an
 * admin queue and an I/O queue. The target knows the commands that PyPI's initiator `nvmeof` sends, and exits after
 * both queues were disconnected.
 *
 * Data move by RDMA READ and RDMA WRITE of the keyed address in the command, as NVMe over RDMA asks for.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 256, QUEUES = 2, BLOCK_SHIFT = 12, DISK = 64 << 20, COMMAND = 64, RESPONSE = 16 };
/* The initiator uses these opcodes, types of Fabrics commands, and registers. */
enum { FLUSH = 0, WRITE = 1, READ = 2, IDENTIFY = 6, SET_FEATURES = 9, FABRICS = 0x7f };
enum { PROPERTY_SET = 0, CONNECT = 1, PROPERTY_GET = 4 };
enum { REGISTER_CAPABILITIES = 0, REGISTER_STATUS = 0x1c };

struct queue {
	struct rdma_cm_id *id;
	struct ibv_cq *sends, *receives;
	struct ibv_mr *commands_mr, *responses_mr, *page_mr, *disk_mr;
	uint8_t commands[DEPTH][COMMAND], responses[DEPTH][RESPONSE], page[4096];
	uint32_t next_response;
};

static uint8_t disk[DISK];
static uint64_t ready;

static void fail(const char *what) {
	fprintf(stderr, "nvme_target: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t number(const uint8_t *at, int length) {
	uint64_t value = 0;
	memcpy(&value, at, length);
	return value;
}

static void post_receive(struct queue *queue, uint64_t slot) {
	struct ibv_sge place = {(uintptr_t)queue->commands[slot], COMMAND, queue->commands_mr->lkey};
	struct ibv_recv_wr work = {.wr_id = slot, .sg_list = &place, .num_sge = 1}, *bad;
	if ((errno = ibv_post_recv(queue->id->qp, &work, &bad))) fail("ibv_post_recv");
}

/* Moves `length` octets between `data` and the keyed address of the command, and waits for that. */
static int move(struct queue *queue, const uint8_t *command, enum ibv_wr_opcode opcode, void *data, struct ibv_mr *region,
		uint32_t length) {
	if (number(command + 32, 3) < length) return -1;
	struct ibv_sge place = {(uintptr_t)data, length, region->lkey};
	struct ibv_send_wr work = {.sg_list = &place, .num_sge = 1, .opcode = opcode, .wr_id = DEPTH}, *bad;
	work.wr.rdma.remote_addr = number(command + 24, 8);
	work.wr.rdma.rkey = number(command + 35, 4);
	work.send_flags = IBV_SEND_SIGNALED;
	if ((errno = ibv_post_send(queue->id->qp, &work, &bad))) fail("ibv_post_send");
	struct ibv_wc done;
	int count;
	while ((count = ibv_poll_cq(queue->sends, 1, &done)) == 0 || (count == 1 && done.wr_id != DEPTH)) continue;
	return count == 1 && done.status == IBV_WC_SUCCESS ? 0 : -1;
}

static void respond(struct queue *queue, const uint8_t *command, uint64_t result, uint16_t status) {
	uint8_t *response = queue->responses[queue->next_response++ % DEPTH];
	memset(response, 0, RESPONSE);
	memcpy(response, &result, 8);
	memcpy(response + 12, command + 2, 2);
	status <<= 1;
	memcpy(response + 14, &status, 2);
	struct ibv_sge place = {(uintptr_t)response, RESPONSE, queue->responses_mr->lkey};
	struct ibv_send_wr work = {.sg_list = &place, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	work.send_flags = IBV_SEND_SIGNALED;
	if ((errno = ibv_post_send(queue->id->qp, &work, &bad))) fail("ibv_post_send");
}

static void put(uint8_t *page, int at, uint64_t value, int length) { memcpy(page + at, &value, length); }

/* Fills the page for Identify Controller (CNS 1) or Identify Namespace. */
static void identify(uint8_t *page, int controller) {
	memset(page, 0, 4096);
	if (controller) {
		memset(page + 4, ' ', 68);
		put(page, 77, 8, 1); /* A command moves at most 2^8 pages. */
		put(page, 78, 1, 2); /* The controller has number 1. */
		put(page, 514, DEPTH, 2);
		put(page, 516, 1, 4); /* There is one namespace. */
		put(page, 536, 1 | 1 << 2, 4); /* The target takes keyed addresses. */
		put(page, 1792, COMMAND / 16, 4);
		put(page, 1796, RESPONSE / 16, 4);
	} else {
		for (int at = 0; at < 24; at += 8) put(page, at, DISK >> BLOCK_SHIFT, 8);
		put(page, 130, BLOCK_SHIFT, 1);
	}
}

static void execute(struct queue *queue, const uint8_t *command) {
	uint64_t result = 0, first = number(command + 40, 8) << BLOCK_SHIFT;
	uint32_t length = (number(command + 48, 2) + 1) << BLOCK_SHIFT;
	int bad = 0;
	switch (command[0]) {
	case FABRICS:
		if (command[4] == CONNECT) {
			bad = move(queue, command, IBV_WR_RDMA_READ, queue->page, queue->page_mr, 1024);
			result = 1;
		} else if (command[4] == PROPERTY_SET) {
			ready = number(command + 48, 8) & 1;
		} else if (command[4] == PROPERTY_GET && number(command + 44, 4) == REGISTER_CAPABILITIES) {
			result = (DEPTH - 1) | 10ull << 24 | 1ull << 37;
		} else if (command[4] == PROPERTY_GET && number(command + 44, 4) == REGISTER_STATUS) {
			result = ready;
		} else {
			bad = 1;
		}
		break;
	case IDENTIFY:
		identify(queue->page, command[40] == 1);
		bad = move(queue, command, IBV_WR_RDMA_WRITE, queue->page, queue->page_mr, 4096);
		break;
	case SET_FEATURES:
	case FLUSH: break;
	case WRITE:
	case READ:
		bad = first + length > DISK;
		if (!bad)
			bad = move(queue, command, command[0] == READ ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, disk + first,
				   queue->disk_mr, length);
		break;
	default: bad = 1;
	}
	respond(queue, command, result, bad ? 6 : 0);
}

/* Executes what arrived, and returns how many commands that was. */
static int serve(struct queue *queue) {
	struct ibv_wc done[16];
	while (ibv_poll_cq(queue->sends, 16, done) > 0) continue;
	int count = ibv_poll_cq(queue->receives, 16, done);
	for (int at = 0; at < count; at++) {
		if (done[at].status != IBV_WC_SUCCESS) continue;
		execute(queue, queue->commands[done[at].wr_id]);
		post_receive(queue, done[at].wr_id);
	}
	return count;
}

static struct ibv_mr *registered(struct queue *queue, void *data, size_t length) {
	struct ibv_mr *region = ibv_reg_mr(queue->id->pd, data, length, IBV_ACCESS_LOCAL_WRITE);
	if (!region) fail("ibv_reg_mr");
	return region;
}

static struct queue *accept_queue(struct rdma_cm_id *id) {
	struct queue *queue = calloc(1, sizeof *queue);
	queue->id = id;
	queue->receives = ibv_create_cq(id->verbs, DEPTH, NULL, NULL, 0);
	queue->sends = ibv_create_cq(id->verbs, 2 * DEPTH, NULL, NULL, 0);
	if (!queue->receives || !queue->sends) fail("ibv_create_cq");
	struct ibv_qp_init_attr wanted = {.send_cq = queue->sends, .recv_cq = queue->receives, .qp_type = IBV_QPT_RC};
	wanted.cap.max_send_wr = wanted.cap.max_recv_wr = DEPTH;
	wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
	if (rdma_create_qp(id, NULL, &wanted)) fail("rdma_create_qp");
	queue->commands_mr = registered(queue, queue->commands, sizeof queue->commands);
	queue->responses_mr = registered(queue, queue->responses, sizeof queue->responses);
	queue->page_mr = registered(queue, queue->page, sizeof queue->page);
	queue->disk_mr = registered(queue, disk, DISK);
	for (uint64_t slot = 0; slot < DEPTH; slot++) post_receive(queue, slot);
	/* The record's format is 0. The second word is the number of posted receives. */
	uint16_t record[16] = {0, DEPTH};
	struct rdma_conn_param parameters = {.private_data = record, .private_data_len = sizeof record};
	parameters.responder_resources = parameters.initiator_depth = 16;
	parameters.rnr_retry_count = 7;
	if (rdma_accept(id, &parameters)) fail("rdma_accept");
	return queue;
}

int main(int count, char **words) {
	if (count != 3) return 2;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[2]))};
	inet_pton(AF_INET, words[1], &address.sin_addr);
	if (!channel || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP)) fail("rdma_create_id");
	if (rdma_bind_addr(listener, (struct sockaddr *)&address) || rdma_listen(listener, 4)) fail("rdma_listen");
	struct queue *queues[QUEUES];
	for (int made = 0, gone = 0; gone < QUEUES;) {
		int busy = 0;
		for (int at = 0; at < made; at++) busy |= serve(queues[at]) > 0;
		struct pollfd events = {.fd = channel->fd, .events = POLLIN};
		if (busy || poll(&events, 1, 0) == 0) continue;
		struct rdma_cm_event *event;
		if (rdma_get_cm_event(channel, &event)) fail("rdma_get_cm_event");
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type type = event->event;
		rdma_ack_cm_event(event);
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST && made < QUEUES) {
			queues[made++] = accept_queue(id);
		} else if (type == RDMA_CM_EVENT_DISCONNECTED) {
			rdma_disconnect(id);
			gone++;
		} else if (type != RDMA_CM_EVENT_ESTABLISHED) {
			fprintf(stderr, "nvme_target: %s\n", rdma_event_str(type));
			return 1;
		}
	}
	return 0;
}
