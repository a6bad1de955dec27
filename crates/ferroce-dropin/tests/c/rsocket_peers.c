/* Peers that break the rsocket protocol: each ends its own connection with an error, and no other. */
#include "cm.h"

#include <poll.h>
#include <rdma/rsocket.h>

/* Private data of the protocol. */
struct grant {
	uint64_t addr;
	uint32_t key, length;
};

struct hello {
	uint8_t version, flags;
	uint16_t credits;
	uint8_t reserved[3], mappings;
	struct grant table, first;
};

static struct hello hello(uint64_t table, uint32_t key, uint32_t places)
{
	struct hello hello = {
		.version = 1,
		.flags = 2,
		.credits = htons(100),
		.table = { htobe64(table), htonl(key), htonl(places) },
		.first = { htobe64(table), htonl(key), htonl(4096) },
	};
	return hello;
}

static int listener(struct sockaddr_storage *at)
{
	socklen_t length = sizeof(*at);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	*at = address_of("127.0.0.1", 0);
	NEED(fd >= 0 && rbind(fd, (void *)at, sizeof(*at)) == 0 && rlisten(fd, 5) == 0);
	NEED(rgetsockname(fd, (void *)at, &length) == 0);
	return fd;
}

/* An id with a queue pair and a route to the rsocket. */
static struct rdma_cm_id *client(struct sockaddr_storage *at)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id = NULL;

	NEED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(id, NULL, (void *)at, 2000) == 0 && rdma_resolve_route(id, 2000) == 0);
	NEED(rdma_create_qp(id, NULL, &init) == 0);
	return id;
}

static int connected(struct rdma_cm_id *id, const void *data, uint8_t length)
{
	struct rdma_conn_param param = {
		.private_data = data, .private_data_len = length, .retry_count = 7, .rnr_retry_count = 7,
	};

	return rdma_connect(id, &param);
}

static void end(struct rdma_cm_id *id)
{
	rdma_disconnect(id);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

static void bad_introductions(void)
{
	struct sockaddr_storage at;
	int fd = listener(&at);
	struct pollfd one = { .fd = fd, .events = POLLIN };

	for (int i = 0; i < 4; i++) {
		struct hello bad = hello(0x1000, 7, 2);
		struct rdma_cm_id *id = client(&at);

		if (i == 0)
			bad.version = 2;
		if (i == 1)
			bad.table.length = htonl(1);
		if (i == 2)
			bad.table.length = 0;
		CHECK_MINUS(connected(id, &bad, i == 3 ? 0 : sizeof(bad)), ECONNREFUSED);
		CHECK(rpoll(&one, 1, 50) == 0);
		end(id);
	}
	CHECK(rclose(fd) == 0);
}

/* A message that breaks the protocol. The rsocket has granted memory and credits, and has a receive buffer. */
struct wrong {
	const char *name;
	enum ibv_wr_opcode opcode;
	uint32_t imm, length;
	/* The number of such messages. */
	int times;
	/* The peer's grant names memory that it has not registered. */
	int nowhere;
};

static void break_it(const struct wrong *wrong)
{
	struct sockaddr_storage at;
	static char memory[8192];
	int fd = listener(&at);
	struct rdma_cm_id *id = client(&at);
	struct ibv_mr *mr = rdma_reg_write(id, memory, sizeof(memory));

	NEED(mr);
	memset(memory, 0, sizeof(memory));
	struct hello hallo = hello((uintptr_t)memory, wrong->nowhere ? mr->rkey ^ 0x100 : mr->rkey, 2);

	for (int i = 0; i < 32; i++)
		NEED(rdma_post_recv(id, NULL, memory, 0, mr) == 0);
	NEED(connected(id, &hallo, sizeof(hallo)) == 0);
	struct hello theirs = *(const struct hello *)id->event->param.conn.private_data;
	int taken = raccept(fd, NULL, NULL);

	NEED(taken >= 0);
	for (int i = 0; i < wrong->times; i++) {
		struct ibv_sge sge = { (uintptr_t)memory, wrong->length, mr->lkey };
		struct ibv_send_wr wr = {
			.sg_list = &sge, .num_sge = wrong->length ? 1 : 0, .opcode = wrong->opcode,
			.imm_data = htonl(wrong->imm),
			.wr.rdma = { be64toh(theirs.first.addr), ntohl(theirs.first.key) },
		}, *bad;

		NEED(ibv_post_send(id->qp, &wr, &bad) == 0);
	}
	struct pollfd one = { .fd = taken };
	char octet;

	CHECK(rpoll(&one, 1, 10000) == 1);
	if (one.revents != POLLERR)
		fprintf(stderr, "%s: %#x\n", wrong->name, one.revents);
	CHECK(one.revents == POLLERR);
	int error = 0;
	socklen_t length = sizeof(error);

	CHECK(rgetsockopt(taken, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == EIO);
	CHECK_MINUS(rsend(taken, "x", 1, 0), ECONNRESET);
	while (rrecv(taken, &octet, 1, MSG_DONTWAIT) > 0)
		;
	CHECK(rclose(taken) == 0 && rclose(fd) == 0);
	rdma_dereg_mr(mr);
	end(id);
}

static void bad_messages(void)
{
	static const struct wrong list[] = {
		{ "a reserved kind", IBV_WR_RDMA_WRITE_WITH_IMM, 0x20000001, 0, 1, 0 },
		{ "an unknown control", IBV_WR_RDMA_WRITE_WITH_IMM, 0xe0000009, 0, 1, 0 },
		{ "data that are not there", IBV_WR_RDMA_WRITE_WITH_IMM, 100, 99, 1, 0 },
		{ "more than was granted", IBV_WR_RDMA_WRITE_WITH_IMM, 0x1fffffff, 0, 1, 0 },
		{ "half a grant", IBV_WR_RDMA_WRITE_WITH_IMM, 0x80000010, 8, 1, 0 },
		{ "too many grants", IBV_WR_RDMA_WRITE_WITH_IMM, 0x80000010, 16, 3, 0 },
		{ "a mapping without place", IBV_WR_RDMA_WRITE_WITH_IMM, 0xc0000000, 24, 1, 0 },
		{ "a message without data", IBV_WR_SEND, 0, 0, 1, 0 },
		{ "a grant of foreign memory", IBV_WR_RDMA_WRITE_WITH_IMM, 0xe0000001, 0, 1, 1 },
	};

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		break_it(&list[i]);
}

static void bad_server(void)
{
	struct sockaddr_storage at = address_of("127.0.0.1", 0);
	struct rdma_cm_id *listening = NULL, *asked = NULL;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event = NULL;
	struct hello bad = hello(0x1000, 7, 2);
	struct rdma_conn_param param = { .private_data = &bad, .private_data_len = sizeof(bad), .qp_num = 77 };

	bad.version = 3;
	NEED(rdma_create_id(channel, &listening, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listening, (void *)&at) == 0 && rdma_listen(listening, 1) == 0);
	at = address_of("127.0.0.1", ntohs(rdma_get_src_port(listening)));
	int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error = 0;
	socklen_t length = sizeof(error);

	CHECK_MINUS(rconnect(fd, (void *)&at, sizeof(at)), EINPROGRESS);
	CHECK_MINUS(rconnect(fd, (void *)&at, sizeof(at)), EINPROGRESS);
	CHECK_MINUS(rsend(fd, "x", 1, 0), EAGAIN);
	NEED(rdma_get_cm_event(channel, &event) == 0 && event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	NEED(rdma_accept(asked, &param) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	struct pollfd one = { .fd = fd, .events = POLLOUT };

	CHECK(rpoll(&one, 1, 10000) == 1 && (one.revents & POLLERR));
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == EOPNOTSUPP);
	CHECK(rclose(fd) == 0);
	CHECK(rdma_destroy_id(asked) == 0 && rdma_destroy_id(listening) == 0);
	rdma_destroy_event_channel(channel);
}

/* A datagram queue pair that sends whatever header it likes to the queue pair of a datagram rsocket. */
struct forger {
	int udp;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	uint32_t qpn;
	char memory[64];
};

static struct sockaddr_in own_name(int fd)
{
	struct sockaddr_in name = {};
	socklen_t length = sizeof(name);

	NEED(getsockname(fd, (void *)&name, &length) == 0);
	return name;
}

/* The answer to a locator names the queue pair of the rsocket at `to`. */
static void locate(struct forger *forger, const struct sockaddr_in *to)
{
	struct {
		uint32_t tag;
		uint8_t version, kind, length, reserved;
		uint32_t qpn, address;
		char octets[5];
	} locator = { htonl(0x55555555), 4, 0, 16, 0, htonl(forger->id->qp->qp_num), htonl(INADDR_LOOPBACK), "hello" };

	NEED(sendto(forger->udp, &locator, 21, 0, (void *)to, sizeof(*to)) == 21);
	NEED(recv(forger->udp, &locator, sizeof(locator), 0) >= 16);
	forger->qpn = ntohl(locator.qpn) & 0xffffff;
}

static void forger(struct forger *forger)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct ibv_qp_init_attr init = datagram_init_attr();
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	union ibv_gid gid, *sgid;

	forger->udp = socket(AF_INET, SOCK_DGRAM, 0);
	NEED(forger->udp >= 0 && bind(forger->udp, (void *)&own, sizeof(own)) == 0);
	forger->id = routed_id(RDMA_PS_UDP);
	NEED(rdma_create_qp(forger->id, NULL, &init) == 0);
	forger->mr = ibv_reg_mr(forger->id->pd, forger->memory, sizeof(forger->memory), 0);
	sgid = &forger->id->route.addr.addr.ibaddr.sgid;
	attr.grh.dgid = forger->id->route.addr.addr.ibaddr.dgid;
	NEED(ibv_query_gid(forger->id->verbs, 1, 0, &gid) == 0);
	while (memcmp(&gid, sgid, sizeof(gid)))
		NEED(ibv_query_gid(forger->id->verbs, 1, ++attr.grh.sgid_index, &gid) == 0);
	forger->ah = ibv_create_ah(forger->id->pd, &attr);
	NEED(forger->mr && forger->ah);
}

static void forge(struct forger *forger, const void *octets, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)forger->memory, .length = length, .lkey = forger->mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.wr.ud = { .ah = forger->ah, .remote_qpn = forger->qpn, .remote_qkey = QKEY },
	}, *bad;
	struct ibv_wc wc;

	memcpy(forger->memory, octets, length);
	NEED(ibv_post_send(forger->id->qp, &wr, &bad) == 0);
	NEED(rdma_get_send_comp(forger->id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
}

/* A message behind a header that names this source. */
static void forge_from(struct forger *forger, const char *address, int port, char content)
{
	struct sockaddr_storage from = address_of(address, port);
	struct sockaddr_in6 *v6 = (void *)&from;
	struct sockaddr_in *v4 = (void *)&from;
	uint8_t message[25] = { 4, 8, port >> 8, port };

	if (from.ss_family == AF_INET) {
		memcpy(message + 4, &v4->sin_addr, 4);
		message[8] = content;
		forge(forger, message, 9);
	} else {
		message[0] = 6;
		message[1] = 24;
		memcpy(message + 8, &v6->sin6_addr, 16);
		message[24] = content;
		forge(forger, message, 25);
	}
}

static void expect_datagram(int fd, char content, int port)
{
	struct sockaddr_in from = {};
	socklen_t length = sizeof(from);
	char octets[8] = "";

	CHECK(rrecvfrom(fd, octets, sizeof(octets), 0, (void *)&from, &length) >= 1);
	CHECK(octets[0] == content);
	CHECK(from.sin_addr.s_addr == htonl(INADDR_LOOPBACK) && ntohs(from.sin_port) == port);
}

/* The header of a datagram is its sender's word: it counts only if the address is the one that the message came from and, at a
 * connected rsocket, if the sender is the peer. */
static void forged_sources(void)
{
	struct sockaddr_storage at = address_of("127.0.0.1", 0);
	struct sockaddr_in to;
	socklen_t length = sizeof(to);
	struct forger sender = {};
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);

	NEED(fd >= 0 && rbind(fd, (void *)&at, sizeof(at)) == 0);
	NEED(rgetsockname(fd, (void *)&to, &length) == 0);
	forger(&sender);

	int port = ntohs(own_name(sender.udp).sin_port), other = port == 7 ? 8 : 7;

	locate(&sender, &to);
	expect_datagram(fd, 'h', port);
	forge_from(&sender, "8.8.8.8", 53, 'f');
	forge_from(&sender, "127.0.0.2", port, 'f');
	forge_from(&sender, "::1", port, 'f');
	forge_from(&sender, "::ffff:8.8.8.8", port, 'f');
	forge(&sender, "\4\10", 2);
	forge(&sender, "\7\7 is no header", 15);
	forge_from(&sender, "127.0.0.1", port, '1');
	forge_from(&sender, "::ffff:127.0.0.1", other, '2');
	expect_datagram(fd, '1', port);
	expect_datagram(fd, '2', other);

	struct sockaddr_in peer = own_name(sender.udp);

	NEED(rconnect(fd, (void *)&peer, sizeof(peer)) == 0);
	forge_from(&sender, "127.0.0.1", other, 'f');
	forge_from(&sender, "8.8.8.8", port, 'f');
	forge_from(&sender, "::ffff:127.0.0.1", port, '3');
	forge_from(&sender, "127.0.0.1", port, '4');
	expect_datagram(fd, '3', port);
	expect_datagram(fd, '4', port);
	CHECK(rclose(fd) == 0 && close(sender.udp) == 0);
	CHECK(ibv_destroy_ah(sender.ah) == 0 && ibv_dereg_mr(sender.mr) == 0);
	rdma_destroy_qp(sender.id);
	CHECK(rdma_destroy_id(sender.id) == 0);
}

int main(void)
{
	raise_lo();
	bad_introductions();
	bad_messages();
	bad_server();
	forged_sources();
	return finish();
}
