/* Rsockets on link-local IPv6 addresses, which are valid on one interface only. */
#include "cm.h"

#include <rdma/rsocket.h>

enum { LENGTH = sizeof(struct sockaddr_in6) };

static struct sockaddr_in6 link_local(const char *text, int port)
{
	struct sockaddr_storage storage = address_of(text, port);
	struct sockaddr_in6 at = *(struct sockaddr_in6 *)&storage;

	at.sin6_scope_id = if_nametoindex("va");
	NEED(at.sin6_scope_id);
	return at;
}

static int bound(int type, struct sockaddr_in6 *at)
{
	int fd = rsocket(AF_INET6, type, 0);
	socklen_t length = LENGTH;

	NEED(fd >= 0 && rbind(fd, (void *)at, LENGTH) == 0);
	NEED(rgetsockname(fd, (void *)at, &length) == 0 && length == LENGTH);
	return fd;
}

static int is(const struct sockaddr_in6 *one, const struct sockaddr_in6 *other)
{
	return one->sin6_family == AF_INET6 && one->sin6_port == other->sin6_port &&
	       one->sin6_scope_id == other->sin6_scope_id &&
	       memcmp(&one->sin6_addr, &other->sin6_addr, sizeof(one->sin6_addr)) == 0;
}

static void datagrams(void)
{
	struct sockaddr_in6 at = link_local("fe80::7:1", 0), own = link_local("fe80::7:2", 0);
	int server = bound(SOCK_DGRAM, &at), client = bound(SOCK_DGRAM, &own);
	char octets[100] = "";

	/* The first datagrams are sent by UDP, later ones between the queue pairs: the source address is the same. */
	for (int i = 0; i < 50; i++) {
		struct sockaddr_in6 from = {};
		socklen_t length = LENGTH;

		CHECK(rsendto(client, octets, i, 0, (void *)&at, LENGTH) == i);
		CHECK(rrecvfrom(server, octets, 100, 0, (void *)&from, &length) == i);
		NEED(length == LENGTH && is(&from, &own));
		CHECK(rsendto(server, octets, i, 0, (void *)&from, length) == i);
		CHECK(rrecvfrom(client, octets, 100, 0, (void *)&from, &length) == i);
		NEED(is(&from, &at));
	}
	CHECK(rclose(client) == 0 && rclose(server) == 0);

	/* An unbound socket. */
	client = rsocket(AF_INET6, SOCK_DGRAM, 0);
	at = link_local("fe80::7:1", 0);
	server = bound(SOCK_DGRAM, &at);
	NEED(client >= 0 && rconnect(client, (void *)&at, LENGTH) == 0);
	for (int i = 0; i < 50; i++) {
		struct sockaddr_in6 from = {};
		socklen_t length = LENGTH;

		CHECK(rsend(client, octets, i, 0) == i);
		CHECK(rrecvfrom(server, octets, 100, 0, (void *)&from, &length) == i);
		NEED(from.sin6_scope_id == at.sin6_scope_id);
		CHECK(rsendto(server, octets, i, 0, (void *)&from, length) == i);
		CHECK(rrecv(client, octets, 100, 0) == i);
	}
	CHECK(rclose(client) == 0 && rclose(server) == 0);
}

static void streams(void)
{
	struct sockaddr_in6 at = link_local("fe80::7:1", 0), from = {};
	int listening = bound(SOCK_STREAM, &at), client = rsocket(AF_INET6, SOCK_STREAM, 0);
	socklen_t length = LENGTH;
	char octet = 'x';

	NEED(client >= 0 && rlisten(listening, 1) == 0);
	NEED(rconnect(client, (void *)&at, LENGTH) == 0);
	int server = raccept(listening, (void *)&from, &length);

	NEED(server >= 0 && length == LENGTH);
	CHECK(from.sin6_scope_id == at.sin6_scope_id);
	CHECK(rsend(client, &octet, 1, 0) == 1 && rrecv(server, &octet, 1, 0) == 1);
	CHECK(rclose(client) == 0 && rclose(server) == 0 && rclose(listening) == 0);
}

int main(void)
{
	if (system("ip link set lo up && ip link add va type veth peer name vb && ip link set va up && ip link set vb up &&"
		   " ip addr add fe80::7:1/64 dev va nodad && ip addr add fe80::7:2/64 dev va nodad")) {
		fprintf(stderr, "there is no veth here\n");
		return 77;
	}
	NEED(setenv("FERROCE_NETDEV", "va", 1) == 0);
	streams();
	datagrams();
	return finish();
}
