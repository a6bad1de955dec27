/*
 * vbench: RDMA WRITE bandwidth and SEND half round trips with verified data, through the
 * public verbs alone, so that it measures any libibverbs: ferroce's, or the kernel's rxe.
 *
 *   vbench [-d DEV] [-g GID] [-m MTU] [-t TCP_PORT] KIND SIZE COUNT [SERVER]
 *
 * KIND write: COUNT messages of SIZE bytes, DEPTH in flight, each stamped with its number at both
 *             ends; afterwards the server checks every byte of the last DEPTH messages. The client
 *             prints "seconds S", from the first post to the last completion, and "gap N", the most nanoseconds that
 *             passed without a completion.
 * KIND send-poll, send-event, send-epoll: COUNT ping-pongs of SIZE bytes; every received message's stamp is
 *             checked. The client prints "median N p99 N max N", nanoseconds of half a round trip. send-epoll waits as an event
 *             loop does, by epoll on the non-blocking descriptor of the channel, and prints "in vain N" as well: how often
 *             the descriptor was readable and there was no event.
 * KIND write-spin: the same by RDMA WRITE; both ends spin on their memory.
 */
#include "pair.h"

#include <fcntl.h>
#include <sys/epoll.h>

#define DEPTH 16

static struct ibv_mr *mr;
static uint8_t *buf;
static uint32_t size, count, in_vain;
static int set = -1;

static uint8_t pattern(uint32_t i) { return (uint8_t)(i * 7 + (i >> 8)); }
static uint8_t *slot(uint64_t i) { return buf + i * size; }

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

static void wrong(uint32_t number)
{
	fprintf(stderr, "message %u is wrong\n", number);
	exit(1);
}

static void write_client(void)
{
	struct ibv_wc wc[DEPTH];
	uint64_t start = now(), last = start, gap = 0;
	for (uint32_t posted = 0, done = 0; done < count;) {
		for (; posted < count && posted - done < DEPTH; posted++) {
			uint64_t i = posted % DEPTH;
			stamp(slot(i), posted);
			post_send(IBV_WR_RDMA_WRITE, posted, slot(i), size, mr->lkey, it.addr + i * size, IBV_SEND_SIGNALED);
		}
		int n = ibv_poll_cq(cq, DEPTH, wc);
		if (n < 0) die("poll_cq");
		for (int i = 0; i < n; i++) good(&wc[i]);
		done += n;
		if (n) {
			uint64_t time = now();
			if (time - last > gap) gap = time - last;
			last = time;
		}
	}
	printf("seconds %.9f gap %llu\n", (last - start) / 1e9, (unsigned long long)gap);
}

static void write_server(void)
{
	for (uint32_t number = count > DEPTH ? count - DEPTH : 0; number < count; number++) {
		const uint8_t *message = slot(number % DEPTH);
		if (!is_stamped(message, number)) wrong(number);
		for (uint32_t i = 8; i + 8 < size; i++) if (message[i] != pattern(i)) wrong(number);
	}
}

/* waits for one receive completion; send completions in between are passed over */
static uint64_t received(int events)
{
	struct ibv_wc wc;
	for (int armed = 0;;) {
		int n = ibv_poll_cq(cq, 1, &wc);
		if (n < 0) die("poll_cq");
		if (n) {
			good(&wc);
			if (wc.opcode & IBV_WC_RECV) return wc.wr_id;
		} else if (events && !armed) {
			/* what came before the request makes no event, so look once more */
			if (ibv_req_notify_cq(cq, 0)) die("req_notify");
			armed = 1;
		} else if (events) {
			struct ibv_cq *which;
			void *user;
			if (ibv_get_cq_event(channel, &which, &user)) die("get_cq_event");
			ibv_ack_cq_events(which, 1);
			armed = 0;
		}
	}
}

/* before the first message */
static void make_loop(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	if (fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK)) die("O_NONBLOCK");
	if ((set = epoll_create1(EPOLL_CLOEXEC)) < 0 || epoll_ctl(set, EPOLL_CTL_ADD, channel->fd, &event)) die("epoll");
	if (ibv_req_notify_cq(cq, 0)) die("req_notify");
}

/* waits for one receive completion as an event loop does */
static uint64_t awaited(void)
{
	struct epoll_event event;
	for (uint64_t found = DEPTH;;) {
		struct ibv_cq *which;
		struct ibv_wc wc;
		void *user;
		int n;
		if (epoll_wait(set, &event, 1, -1) < 0) die("epoll_wait");
		if (ibv_get_cq_event(channel, &which, &user)) {
			if (errno != EAGAIN) die("get_cq_event");
			in_vain++;
			continue;
		}
		ibv_ack_cq_events(which, 1);
		if (ibv_req_notify_cq(cq, 0)) die("req_notify");
		while ((n = ibv_poll_cq(cq, 1, &wc)) > 0) {
			good(&wc);
			if (wc.opcode & IBV_WC_RECV) found = wc.wr_id;
		}
		if (n < 0) die("poll_cq");
		if (found < DEPTH) return found;
	}
}

static int order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static int print(uint64_t *half)
{
	qsort(half, count, sizeof *half, order);
	return printf("median %llu p99 %llu max %llu\n", (unsigned long long)half[count / 2],
		      (unsigned long long)half[(uint64_t)count * 99 / 100], (unsigned long long)half[count - 1]);
}

/* slot 0 is sent to slot 1 of the other end, which looks at the stamp's end: a WRITE lands in the order of its bytes */
static void spin(int is_client)
{
	uint64_t *half = calloc(count, sizeof *half);
	volatile uint64_t *last = (volatile uint64_t *)(slot(1) + size - 8);
	if (!half) die("memory");
	for (uint32_t i = 0; i < count; i++) {
		uint64_t start = now();
		for (int turn = 0; turn < 2; turn++) {
			if (turn == is_client) {
				while (*last != i) ;
				if (!is_stamped(slot(1), i)) wrong(i);
			} else {
				stamp(slot(0), i);
				post_send(IBV_WR_RDMA_WRITE, i, slot(0), size, mr->lkey, it.addr + size,
					  (size <= 64 ? IBV_SEND_INLINE : 0) | (i % 16 ? 0 : IBV_SEND_SIGNALED));
				if (i % 16 == 15) reap(1);
			}
		}
		half[i] = (now() - start) / 2;
	}
	if (is_client) print(half);
	free(half);
}

static void ping_pong(int is_client, int events, int loop)
{
	uint64_t *half = calloc(count, sizeof *half);
	if (!half) die("memory");
	for (uint32_t i = 0; i < count; i++) {
		int flags = (size <= 64 ? IBV_SEND_INLINE : 0) | (i % 16 ? 0 : IBV_SEND_SIGNALED);
		uint64_t start = now(), in;
		if (is_client) {
			stamp(slot(0), i);
			post_send(IBV_WR_SEND, i, slot(0), size, mr->lkey, 0, flags);
		}
		in = loop ? awaited() : received(events);
		if (!is_stamped(slot(in), i)) wrong(i);
		if (!is_client) {
			stamp(slot(0), i);
			post_send(IBV_WR_SEND, i, slot(0), size, mr->lkey, 0, flags);
		}
		half[i] = (now() - start) / 2;
		post_recv(in, slot(in), size, mr->lkey);
	}
	if (is_client) print(half);
	if (loop) printf("in vain %u\n", in_vain);
	free(half);
}

int main(int argc, char **argv)
{
	int first = options(argc, argv);
	if (argc - first < 3) { fprintf(stderr, "vbench: KIND SIZE COUNT [SERVER]\n"); return 2; }
	const char *kind = argv[first], *host = argc - first > 3 ? argv[first + 3] : NULL;
	size = strtoul(argv[first + 1], NULL, 0);
	count = strtoul(argv[first + 2], NULL, 0);
	int writes = !strcmp(kind, "write"), events = !strcmp(kind, "send-event"), loop = !strcmp(kind, "send-epoll");
	int spins = !strcmp(kind, "write-spin");
	if (size < 8 || !count || !(writes || events || loop || spins || !strcmp(kind, "send-poll"))) { fprintf(stderr, "vbench: bad arguments\n"); return 2; }
	open_device();
	create_qp();
	if (posix_memalign((void **)&buf, 4096, (size_t)size * DEPTH)) die("memory");
	for (size_t k = 0; k < (size_t)size * DEPTH; k++) buf[k] = pattern(k % size);
	mr = ibv_reg_mr(pd, buf, (size_t)size * DEPTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!mr) die("reg_mr");
	connect_peer(host, mr);
	/* slot 0 is what a ping-pong sends from */
	if (!writes && !spins) for (int i = 1; i < DEPTH; i++) post_recv(i, slot(i), size, mr->lkey);
	/* the first number is 0, which must not be there before */
	if (loop) make_loop();
	if (spins) memset(slot(1), 0xff, size);
	meet();
	if (spins) spin(host != NULL);
	else if (!writes) ping_pong(host != NULL, events, loop);
	else if (host) write_client();
	meet();
	if (writes && !host) write_server();
	/* the client ends well only when the server found the data right */
	meet();
	return 0;
}
