/* Sends frames of RoCE v1 that nobody has asked for: forge NETDEV MAC IPV4 COUNT. COUNT times one without a header, one to
 * an address that is not there, and one to a queue pair of nobody at IPV4. */
#include <arpa/inet.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { GRH = 40, PACKET = GRH + 12 + 4, ROCE = 0x8915 };

/* GRH, BTH and ICRC of a SEND to `address` and `qpn`. */
static void packet(unsigned char *to, const unsigned char *address, unsigned int qpn)
{
	memset(to, 0, PACKET);
	to[0] = 0x60;
	to[5] = PACKET - GRH;
	to[6] = 0x1b;
	to[7] = 64;
	for (int gid = 8; gid <= 24; gid += 16) {
		to[gid + 10] = to[gid + 11] = 0xff;
		memcpy(to + gid + 12, address, 4);
	}
	to[GRH] = 4;
	to[GRH + 2] = to[GRH + 3] = 0xff;
	to[GRH + 5] = qpn >> 16;
	to[GRH + 6] = qpn >> 8;
	to[GRH + 7] = qpn;
}

int main(int argc, char **argv)
{
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_protocol = htons(ROCE), .sll_halen = 6 };
	unsigned char frames[3][PACKET] = { 0 }, address[4], nobody[4] = { 192, 0, 2, 1 };
	unsigned char *mac = to.sll_addr;

	if (argc != 5 || inet_pton(AF_INET, argv[3], address) != 1 ||
	    sscanf(argv[2], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5) != 6) {
		fprintf(stderr, "forge NETDEV MAC IPV4 COUNT\n");
		return 2;
	}
	to.sll_ifindex = if_nametoindex(argv[1]);
	packet(frames[1], nobody, 0xfe0011);
	packet(frames[2], address, 0xfe0011);
	int fd = socket(AF_PACKET, SOCK_DGRAM, 0);

	if (fd < 0 || !to.sll_ifindex) {
		perror("forge");
		return 77;
	}
	for (int i = 0; i < 3 * atoi(argv[4]); i++)
		if (sendto(fd, frames[i % 3], PACKET, 0, (struct sockaddr *)&to, sizeof(to)) != PACKET) {
			perror("forge: sendto");
			return 1;
		}
	return 0;
}
