/*
 * vbench: RDMA WRITE bandwidth and SEND half round trips with verified data, through the
 * public verbs alone, so that it measures any libibverbs: ferroce's, or the kernel's rxe.
 *
 *   server: vbench [-d DEV] [-g GID] [-m MTU] [-t TCP_PORT] KIND SIZE COUNT
 *   client: vbench [-d DEV] [-g GID] [-m MTU] [-t TCP_PORT] KIND SIZE COUNT SERVER
 *
 * KIND write: COUNT messages of SIZE bytes, DEPTH in flight, each stamped with its number at both
 *             ends; afterwards the server checks every byte of the last DEPTH messages. The client
 *             prints "seconds S", from the first post to the last completion.
 * KIND send-poll, send-event: COUNT ping-pongs of SIZE bytes; every received message's stamp is
 *             checked. The client prints "median N p99 N", nanoseconds of half a round trip.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 16
#define RECVS 64

/* both ends are of one kind of machine, so host byte order will do */
struct hello {
	uint32_t qpn, psn, rkey;
	uint64_t addr;
	uint8_t gid[16];
} __attribute__((packed));

static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static struct ibv_mr *mr;
static uint8_t *buf;
static struct hello me, it;
static uint32_t size, count;
static int sock = -1;

static void die(const char *what)
{
	fprintf(stderr, "vbench: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void give(const void *data, size_t n)
{
	if (write(sock, data, n) != (ssize_t)n) die("tcp write");
}

static void take(void *data, size_t n)
{
	for (size_t k = 0; k < n;) {
		ssize_t r = read(sock, (char *)data + k, n - k);
		if (r <= 0) die("tcp read");
		k += r;
	}
}

/* both ends are here */
static void meet(void)
{
	char c = 'x';
	give(&c, 1);
	take(&c, 1);
}

static void join_peer(const char *host, const char *port)
{
	struct addrinfo hint = { .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE, .ai_family = AF_INET }, *a;
	int one = 1;
	if (getaddrinfo(host, port, &hint, &a)) die("getaddrinfo");
	int s = socket(a->ai_family, SOCK_STREAM, 0);
	if (host) {
		for (int i = 0; connect(s, a->ai_addr, a->ai_addrlen); i++) {
			if (i == 50) die("connect");
			usleep(50000);
			close(s);
			s = socket(a->ai_family, SOCK_STREAM, 0);
		}
		sock = s;
	} else {
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(s, a->ai_addr, a->ai_addrlen) || listen(s, 1)) die("listen");
		sock = accept(s, NULL, NULL);
		if (sock < 0) die("accept");
		close(s);
	}
	freeaddrinfo(a);
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint8_t pattern(uint32_t i) { return (uint8_t)(i * 7 + (i >> 8)); }

/* the message's number stands in its first eight bytes, and in its last when there is room */
static void stamp(uint8_t *message, uint64_t number)
{
	memcpy(message, &number, 8);
	if (size >= 16) memcpy(message + size - 8, &number, 8);
}

static int is_stamped(const uint8_t *message, uint64_t number)
{
	return !memcmp(message, &number, 8) && (size < 16 || !memcmp(message + size - 8, &number, 8));
}

static void open_device(const char *name, int gid_index)
{
	int n, i;
	struct ibv_device **list = ibv_get_device_list(&n);
	for (i = 0; i < n && name && strcmp(ibv_get_device_name(list[i]), name); i++) ;
	if (!list || i >= n) { errno = ENODEV; die("device"); }
	struct ibv_context *context = ibv_open_device(list[i]);
	if (!context) die("open_device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	if (!pd || !channel) die("pd");
	cq = ibv_create_cq(context, 2 * RECVS, NULL, channel, 0);
	if (!cq) die("create_cq");
	if (posix_memalign((void **)&buf, 4096, (size_t)size * DEPTH)) die("memory");
	for (size_t k = 0; k < (size_t)size * DEPTH; k++) buf[k] = pattern(k % size);
	mr = ibv_reg_mr(pd, buf, (size_t)size * DEPTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!mr) die("reg_mr");
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = RECVS, .max_recv_wr = RECVS, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 } };
	qp = ibv_create_qp(pd, &init);
	if (!qp) die("create_qp");
	union ibv_gid gid;
	if (ibv_query_gid(context, 1, gid_index, &gid)) die("query_gid");
	me = (struct hello){ .qpn = qp->qp_num, .psn = getpid() & 0xffffff, .rkey = mr->rkey, .addr = (uintptr_t)buf };
	memcpy(me.gid, &gid, 16);
}

static void connect_qp(int gid_index, int mtu)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) die("INIT");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .dest_qp_num = it.qpn, .rq_psn = it.psn, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64, .sgid_index = gid_index } } };
	a.path_mtu = mtu == 256 ? IBV_MTU_256 : mtu == 512 ? IBV_MTU_512 : mtu == 1024 ? IBV_MTU_1024 : mtu == 2048 ? IBV_MTU_2048 : IBV_MTU_4096;
	memcpy(&a.ah_attr.grh.dgid, it.gid, 16);
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) die("RTR");
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = me.psn; a.timeout = 14; a.retry_cnt = 7; a.rnr_retry = 7; a.max_rd_atomic = 1;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				  IBV_QP_MAX_QP_RD_ATOMIC)) die("RTS");
}

static void check(const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "vbench: completion: %s\n", ibv_wc_status_str(wc->status));
		exit(1);
	}
}

static void post(int opcode, uint32_t slot, int flags)
{
	struct ibv_sge sge = { (uintptr_t)buf + (uint64_t)slot * size, size, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags }, *bad;
	wr.wr.rdma.remote_addr = it.addr + (uint64_t)slot * size;
	wr.wr.rdma.rkey = it.rkey;
	if ((errno = ibv_post_send(qp, &wr, &bad))) die("post_send");
}

static void write_client(void)
{
	struct ibv_wc wc[DEPTH];
	uint64_t start = now();
	for (uint32_t posted = 0, done = 0; done < count;) {
		for (; posted < count && posted - done < DEPTH; posted++) {
			stamp(buf + (uint64_t)(posted % DEPTH) * size, posted);
			post(IBV_WR_RDMA_WRITE, posted % DEPTH, IBV_SEND_SIGNALED);
		}
		int n = ibv_poll_cq(cq, DEPTH, wc);
		if (n < 0) die("poll_cq");
		for (int i = 0; i < n; i++) check(&wc[i]);
		done += n;
	}
	printf("seconds %.9f\n", (now() - start) / 1e9);
}

static void write_server(void)
{
	for (uint32_t number = count > DEPTH ? count - DEPTH : 0; number < count; number++) {
		const uint8_t *message = buf + (uint64_t)(number % DEPTH) * size;
		int bad = !is_stamped(message, number);
		for (uint32_t i = 8; i + 8 < size; i++) bad |= message[i] != pattern(i);
		if (bad) { fprintf(stderr, "vbench: message %u is wrong\n", number); exit(1); }
	}
}

static void post_recv(uint64_t slot)
{
	struct ibv_sge sge = { (uintptr_t)buf + slot * size, size, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	if ((errno = ibv_post_recv(qp, &wr, &bad))) die("post_recv");
}

/* waits for one receive completion; send completions in between are counted off */
static uint32_t received(int events)
{
	struct ibv_wc wc;
	for (;;) {
		int n = ibv_poll_cq(cq, 1, &wc);
		if (n < 0) die("poll_cq");
		if (n && (check(&wc), wc.opcode & IBV_WC_RECV)) return wc.wr_id;
		if (n || !events) continue;
		struct ibv_cq *which;
		void *context;
		if (ibv_req_notify_cq(cq, 0)) die("req_notify");
		/* what came before the request makes no event */
		n = ibv_poll_cq(cq, 1, &wc);
		if (n < 0) die("poll_cq");
		if (!n) {
			if (ibv_get_cq_event(channel, &which, &context)) die("get_cq_event");
			ibv_ack_cq_events(which, 1);
		} else if (check(&wc), wc.opcode & IBV_WC_RECV) {
			return wc.wr_id;
		}
	}
}

static int order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static void ping_pong(int is_client, int events)
{
	uint64_t *half = calloc(count, sizeof *half);
	int inlined = size <= 64 ? IBV_SEND_INLINE : 0;
	if (!half) die("memory");
	for (uint32_t i = 0; i < count; i++) {
		uint64_t start = now();
		if (is_client) {
			stamp(buf, i);
			post(IBV_WR_SEND, 0, inlined | (i % 16 ? 0 : IBV_SEND_SIGNALED));
		}
		uint32_t slot = received(events);
		if (!is_stamped(buf + (uint64_t)slot * size, i)) { fprintf(stderr, "vbench: message %u is wrong\n", i); exit(1); }
		if (!is_client) {
			stamp(buf, i);
			post(IBV_WR_SEND, 0, inlined | (i % 16 ? 0 : IBV_SEND_SIGNALED));
		}
		half[i] = (now() - start) / 2;
		post_recv(slot);
	}
	if (is_client) {
		qsort(half, count, sizeof *half, order);
		printf("median %llu p99 %llu\n", (unsigned long long)half[count / 2], (unsigned long long)half[(uint64_t)count * 99 / 100]);
	}
	free(half);
}

int main(int argc, char **argv)
{
	const char *device = NULL, *port = "18700";
	int option, gid_index = 0, mtu = 4096;
	while ((option = getopt(argc, argv, "d:g:m:t:")) != -1) switch (option) {
	case 'd': device = optarg; break;
	case 'g': gid_index = atoi(optarg); break;
	case 'm': mtu = atoi(optarg); break;
	case 't': port = optarg; break;
	default: return 2;
	}
	if (argc - optind < 3) { fprintf(stderr, "usage: vbench [-d DEV] [-g GID] [-m MTU] [-t PORT] KIND SIZE COUNT [SERVER]\n"); return 2; }
	const char *kind = argv[optind], *host = argc - optind > 3 ? argv[optind + 3] : NULL;
	size = strtoul(argv[optind + 1], NULL, 0);
	count = strtoul(argv[optind + 2], NULL, 0);
	int writes = !strcmp(kind, "write"), events = !strcmp(kind, "send-event");
	if (size < 8 || !count || !(writes || events || !strcmp(kind, "send-poll"))) { fprintf(stderr, "vbench: bad arguments\n"); return 2; }
	alarm(120);
	open_device(device, gid_index);
	join_peer(host, port);
	give(&me, sizeof me);
	take(&it, sizeof it);
	connect_qp(gid_index, mtu);
	/* slot 0 is what a ping-pong sends from */
	if (!writes) for (int i = 1; i < DEPTH; i++) post_recv(i);
	meet();
	if (!writes) ping_pong(host != NULL, events);
	else if (host) write_client();
	meet();
	if (writes && !host) write_server();
	/* the client ends well only when the server found the data right */
	meet();
	return 0;
}
