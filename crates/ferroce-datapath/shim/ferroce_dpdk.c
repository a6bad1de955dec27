/*
 * DPDK for ferroced, as a library of plain functions: DPDK's bursts are inline functions, which only C can call.
 *
 * ferroced loads the library at run time (src/sys/dpdk.rs), so nothing else of ferroce depends on DPDK. All functions return a negative
 * errno on failure. The caller serialises everything but the bursts, and calls a burst of a port in one direction by one thread at a time.
 * Packets cross this interface as octets: a burst copies between packet buffers of DPDK and one flat buffer of the caller, so the caller
 * never holds memory of DPDK.
 *
 * cc -O2 -shared -fPIC -fvisibility=hidden -o libferroce-dpdk.so ferroce_dpdk.c $(pkg-config --cflags --libs libdpdk)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <rte_config.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>

#define EXPORT __attribute__((visibility("default")))

/* The version of this interface; src/sys/dpdk.rs has the same number. */
#define INTERFACE 1

#define RX_DESCRIPTORS 1024
#define TX_DESCRIPTORS 1024
/* Buffers of a port: both rings full, a burst each way, and what drivers keep. The driver of AF_XDP alone takes more than 4,096. */
#define BUFFERS 8191
/* Buffers that a thread which is known to DPDK keeps for itself. */
#define CACHE 250
#define BURST 64

struct ferroce_dpdk_info {
	uint8_t mac[6];
	uint16_t mtu;
};

static struct rte_mempool *pools[RTE_MAX_ETHPORTS];

/* The lines that DPDK logged since they were last read: the reason of a failure, for people. */
static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;
static char lines[512];
static size_t lines_length;

static ssize_t keep_lines(void *cookie, const char *text, size_t length)
{
	size_t kept = length, room;

	(void)cookie;
	while (kept > 0 && (text[kept - 1] == '\n' || text[kept - 1] == '\r'))
		kept--;
	pthread_mutex_lock(&lines_lock);
	room = sizeof(lines) - 1 - lines_length;
	if (kept > 0 && room > 2) {
		if (lines_length > 0) {
			memcpy(lines + lines_length, "; ", 2);
			lines_length += 2;
			room -= 2;
		}
		if (kept > room)
			kept = room;
		memcpy(lines + lines_length, text, kept);
		lines_length += kept;
		lines[lines_length] = '\0';
	}
	pthread_mutex_unlock(&lines_lock);
	return (ssize_t)length;
}

EXPORT int ferroce_dpdk_interface(void)
{
	return INTERFACE;
}

/* Copies the lines of DPDK's log, joined, and forgets them. */
EXPORT void ferroce_dpdk_message(char *out, size_t size)
{
	if (size == 0)
		return;
	pthread_mutex_lock(&lines_lock);
	snprintf(out, size, "%s", lines);
	lines[0] = '\0';
	lines_length = 0;
	pthread_mutex_unlock(&lines_lock);
}

/*
 * Starts DPDK with the arguments of a command line. Once in a process. The calling thread keeps its affinity, and DPDK's own threads
 * receive no signals of the process.
 */
EXPORT int ferroce_dpdk_init(int argc, char **argv)
{
	cookie_io_functions_t functions = { .write = keep_lines };
	FILE *log = fopencookie(NULL, "w", functions);
	cpu_set_t affinity;
	sigset_t all, before;
	int known, result;

	if (log != NULL) {
		setvbuf(log, NULL, _IOLBF, 0);
		rte_openlog_stream(log);
	}
	known = sched_getaffinity(0, sizeof(affinity), &affinity) == 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	result = rte_eal_init(argc, argv);
	if (result < 0)
		result = rte_errno > 0 ? -rte_errno : -EIO;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (known)
		sched_setaffinity(0, sizeof(affinity), &affinity);
	if (result < 0)
		return result;
	/* Without shared files nothing is in it. */
	(void)rmdir(rte_eal_get_runtime_dir());
	return 0;
}

/* Makes the calling thread known to DPDK, which then keeps buffers for it. Without that it is only slower. */
EXPORT void ferroce_dpdk_thread(void)
{
	(void)rte_thread_register();
}

/* Finds the device of DPDK's device arguments, such as "net_af_packet0,iface=eth1" or "0000:03:00.0". Returns its port. */
EXPORT int ferroce_dpdk_probe(const char *devargs)
{
	struct rte_dev_iterator iterator;
	char name[RTE_ETH_NAME_MAX_LEN];
	uint16_t port, found = RTE_MAX_ETHPORTS;
	size_t length = strcspn(devargs, ",");
	int result;

	if (length >= sizeof(name))
		return -ENAMETOOLONG;
	memcpy(name, devargs, length);
	name[length] = '\0';
	if (rte_eth_dev_get_port_by_name(name, &port) == 0)
		return -EEXIST;
	result = rte_dev_probe(devargs);
	if (result < 0)
		return result;
	if (rte_eth_dev_get_port_by_name(name, &port) == 0)
		return port;
	RTE_ETH_FOREACH_MATCHING_DEV(port, name, &iterator) {
		if (found == RTE_MAX_ETHPORTS)
			found = port;
	}
	return found == RTE_MAX_ETHPORTS ? -ENODEV : found;
}

/* Starts a port with one queue in each direction. "mtu" 0 leaves the MTU as it is. */
EXPORT int ferroce_dpdk_start(uint16_t port, uint16_t mtu, struct ferroce_dpdk_info *out)
{
	struct rte_eth_conf conf;
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac;
	char name[RTE_MEMPOOL_NAMESIZE];
	uint16_t rx = RX_DESCRIPTORS, tx = TX_DESCRIPTORS, now = 0;
	uint32_t room;
	int result, socket;

	if (port >= RTE_MAX_ETHPORTS)
		return -EINVAL;
	memset(&conf, 0, sizeof(conf));
	result = rte_eth_dev_info_get(port, &info);
	if (result < 0)
		return result;
	result = rte_eth_dev_get_mtu(port, &now);
	if (result < 0)
		return result;
	if (mtu != 0)
		now = mtu;
	conf.rxmode.mtu = now;
	result = rte_eth_dev_configure(port, 1, 1, &conf);
	if (result < 0)
		return result;
	result = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx);
	if (result < 0)
		return result;
	socket = rte_eth_dev_socket_id(port);
	/* A frame lies in one buffer: with its Ethernet header, two tags and the check sequence. */
	room = RTE_PKTMBUF_HEADROOM + now + 14 + 8 + 4;
	if (room < RTE_MBUF_DEFAULT_BUF_SIZE)
		room = RTE_MBUF_DEFAULT_BUF_SIZE;
	room = RTE_ALIGN_CEIL(room, 128);
	snprintf(name, sizeof(name), "ferroce-%u", port);
	pools[port] = rte_pktmbuf_pool_create(name, BUFFERS, CACHE, 0, (uint16_t)room, socket);
	if (pools[port] == NULL)
		return rte_errno > 0 ? -rte_errno : -ENOMEM;
	result = rte_eth_rx_queue_setup(port, 0, rx, socket, NULL, pools[port]);
	if (result < 0)
		goto failed;
	result = rte_eth_tx_queue_setup(port, 0, tx, socket, NULL);
	if (result < 0)
		goto failed;
	result = rte_eth_dev_start(port);
	if (result < 0)
		goto failed;
	/* Groups of IPv6 and of RoCE. A driver without such a filter refuses, and receives them anyway. */
	(void)rte_eth_allmulticast_enable(port);
	result = rte_eth_macaddr_get(port, &mac);
	if (result < 0) {
		(void)rte_eth_dev_stop(port);
		goto failed;
	}
	memcpy(out->mac, mac.addr_bytes, sizeof(out->mac));
	out->mtu = now;
	return 0;
failed:
	rte_mempool_free(pools[port]);
	pools[port] = NULL;
	return result;
}

/*
 * Receives up to "most" frames. Frame k begins at octet k * stride of "buffer" and has lengths[k] octets; one that is longer than the
 * stride, and one of an impossible shape, has length 0.
 */
EXPORT int ferroce_dpdk_rx(uint16_t port, uint8_t *buffer, uint32_t stride, uint32_t *lengths, uint16_t most)
{
	struct rte_mbuf *packets[BURST];
	uint16_t count, k;

	count = rte_eth_rx_burst(port, 0, packets, most < BURST ? most : BURST);
	for (k = 0; k < count; k++) {
		uint32_t length = rte_pktmbuf_pkt_len(packets[k]);
		uint8_t *to = buffer + (size_t)k * stride;
		const void *from = length <= stride ? rte_pktmbuf_read(packets[k], 0, length, to) : NULL;

		if (from == NULL)
			length = 0;
		else if (from != to)
			memcpy(to, from, length);
		lengths[k] = length;
	}
	rte_pktmbuf_free_bulk(packets, count);
	return count;
}

/* Sends "count" frames, which lie as in ferroce_dpdk_rx. Returns how many the port took; the others are lost. */
EXPORT int ferroce_dpdk_tx(uint16_t port, const uint8_t *buffer, uint32_t stride, const uint32_t *lengths, uint16_t count)
{
	struct rte_mbuf *packets[BURST];
	uint16_t k, sent, filled = 0;
	int tries = 0;

	if (port >= RTE_MAX_ETHPORTS || pools[port] == NULL)
		return -ENODEV;
	if (count > BURST)
		count = BURST;
	if (rte_pktmbuf_alloc_bulk(pools[port], packets, count) != 0) {
		/* Drivers give sent buffers back with a burst, also with an empty one. */
		(void)rte_eth_tx_burst(port, 0, packets, 0);
		if (rte_pktmbuf_alloc_bulk(pools[port], packets, count) != 0)
			return 0;
	}
	for (k = 0; k < count; k++) {
		struct rte_mbuf *packet = packets[k];
		char *to = lengths[k] <= UINT16_MAX ? rte_pktmbuf_append(packet, (uint16_t)lengths[k]) : NULL;

		if (to == NULL || lengths[k] == 0) {
			rte_pktmbuf_free(packet);
			continue;
		}
		memcpy(to, buffer + (size_t)k * stride, lengths[k]);
		packets[filled++] = packet;
	}
	sent = rte_eth_tx_burst(port, 0, packets, filled);
	while (sent < filled && tries++ < 3)
		sent += rte_eth_tx_burst(port, 0, packets + sent, filled - sent);
	if (sent < filled)
		rte_pktmbuf_free_bulk(packets + sent, filled - sent);
	return sent;
}

/* Returns 1 if the port's link is up, 0 if it is down. Does not wait. */
EXPORT int ferroce_dpdk_link(uint16_t port)
{
	struct rte_eth_link link;
	int result;

	memset(&link, 0, sizeof(link));
	result = rte_eth_link_get_nowait(port, &link);
	return result < 0 ? result : link.link_status == RTE_ETH_LINK_UP;
}

/* Writes the counts of frames: received, sent, missed by the device, received with errors, not sent, without a buffer. */
EXPORT int ferroce_dpdk_stats(uint16_t port, uint64_t out[6])
{
	struct rte_eth_stats stats;
	int result = rte_eth_stats_get(port, &stats);

	if (result < 0)
		return result;
	out[0] = stats.ipackets;
	out[1] = stats.opackets;
	out[2] = stats.imissed;
	out[3] = stats.ierrors;
	out[4] = stats.oerrors;
	out[5] = stats.rx_nombuf;
	return 0;
}

/* Stops a port and gives its device back. Nobody calls a burst of it any more. */
EXPORT int ferroce_dpdk_close(uint16_t port)
{
	struct rte_eth_dev_info info;
	int result, known;

	memset(&info, 0, sizeof(info));
	known = rte_eth_dev_info_get(port, &info) == 0 && info.device != NULL;
	(void)rte_eth_dev_stop(port);
	result = rte_eth_dev_close(port);
	if (known && rte_dev_is_probed(info.device))
		result = rte_dev_remove(info.device);
	if (port < RTE_MAX_ETHPORTS && pools[port] != NULL) {
		rte_mempool_free(pools[port]);
		pools[port] = NULL;
	}
	return result;
}
