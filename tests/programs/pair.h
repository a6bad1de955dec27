/*
 * What the two ends of an exchange share: one RC queue pair, its numbers swapped over TCP, stepped
 * by single TCP bytes. Public verbs alone. Options of every program:
 *
 *   [-d DEV] [-g GID] [-m MTU] [-t TCP_PORT] ... [SERVER]
 */
#define _GNU_SOURCE
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

/* work requests a queue holds */
#define WRS 64

/* both ends are of one kind of machine, so host byte order will do */
struct hello {
	uint32_t qpn, psn, rkey;
	uint64_t addr;
	uint8_t gid[16];
} __attribute__((packed));

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct hello me, it;
static const char *device, *port = "18700";
static int gid_index, mtu = 4096, sock = -1;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static inline void give(const void *data, size_t n)
{
	if (write(sock, data, n) != (ssize_t)n) die("tcp write");
}

static inline void take(void *data, size_t n)
{
	for (size_t k = 0; k < n;) {
		ssize_t r = read(sock, (char *)data + k, n - k);
		if (r <= 0) die("tcp read");
		k += r;
	}
}

/* returns when the other end is here too */
static inline void meet(void)
{
	char c = 'x';
	give(&c, 1);
	take(&c, 1);
}

static inline void join_peer(const char *host)
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

/* takes the common options; the index of the first argument after them */
static inline int options(int argc, char **argv)
{
	int o;
	while ((o = getopt(argc, argv, "d:g:m:t:")) != -1) switch (o) {
	case 'd': device = optarg; break;
	case 'g': gid_index = atoi(optarg); break;
	case 'm': mtu = atoi(optarg); break;
	case 't': port = optarg; break;
	default: exit(2);
	}
	alarm(120);
	return optind;
}

static inline void open_device(void)
{
	int n = 0, i;
	struct ibv_device **list = ibv_get_device_list(&n);
	for (i = 0; i < n && device && strcmp(ibv_get_device_name(list[i]), device); i++) ;
	if (!list || i >= n) { errno = ENODEV; die("device"); }
	context = ibv_open_device(list[i]);
	if (!context) die("open_device");
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	if (!pd || !channel) die("alloc_pd");
	cq = ibv_create_cq(context, 2 * WRS, NULL, channel, 0);
	if (!cq) die("create_cq");
}

static inline void create_qp(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = WRS, .max_recv_wr = WRS, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 } };
	qp = ibv_create_qp(pd, &init);
	if (!qp) die("create_qp");
}

/* swaps the numbers with the other end and connects; `mr` is what it may use */
static inline void connect_peer(const char *host, const struct ibv_mr *mr)
{
	union ibv_gid gid;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) die("INIT");
	if (ibv_query_gid(context, 1, gid_index, &gid)) die("query_gid");
	me = (struct hello){ .qpn = qp->qp_num, .psn = getpid() & 0xffffff, .rkey = mr->rkey, .addr = (uintptr_t)mr->addr };
	memcpy(me.gid, &gid, 16);
	join_peer(host);
	give(&me, sizeof me);
	take(&it, sizeof it);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .dest_qp_num = it.qpn, .rq_psn = it.psn, .max_dest_rd_atomic = 16,
		.min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64, .sgid_index = gid_index } } };
	a.path_mtu = mtu == 256 ? IBV_MTU_256 : mtu == 512 ? IBV_MTU_512 : mtu == 1024 ? IBV_MTU_1024 : mtu == 2048 ? IBV_MTU_2048 : IBV_MTU_4096;
	memcpy(&a.ah_attr.grh.dgid, it.gid, 16);
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) die("RTR");
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = me.psn; a.timeout = 14; a.retry_cnt = 7; a.rnr_retry = 7; a.max_rd_atomic = 16;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				  IBV_QP_MAX_QP_RD_ATOMIC)) die("RTS");
	meet();
}

static inline void post_send(int opcode, uint64_t id, const void *at, uint32_t length, uint32_t lkey, uint64_t remote, int flags)
{
	struct ibv_sge sge = { (uintptr_t)at, length, lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags }, *bad;
	wr.wr.rdma.remote_addr = remote;
	wr.wr.rdma.rkey = it.rkey;
	if ((errno = ibv_post_send(qp, &wr, &bad))) die("post_send");
}

static inline void post_recv(uint64_t id, void *at, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = { (uintptr_t)at, length, lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	if ((errno = ibv_post_recv(qp, &wr, &bad))) die("post_recv");
}

static inline uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* a completion that must be a success */
static inline void good(const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "completion of %llu: %s\n", (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status));
		exit(1);
	}
}

/* waits for n completions, polling; the status of the last */
static inline int reap(int n)
{
	struct ibv_wc wc;
	int status = -1;
	for (uint64_t end = now() + 20000000000ull; n > 0;) {
		int r = ibv_poll_cq(cq, 1, &wc);
		if (r < 0) die("poll_cq");
		if (r) { status = wc.status; n--; }
		else if (now() > end) { fprintf(stderr, "no completion in 20 s\n"); exit(1); }
	}
	return status;
}
