/*
 * memory: registered memory that somebody writes to all the time, and registered memory that goes away.
 *
 *   memory [-d DEV] [-g GID] [-m MTU] [-t TCP_PORT] hot COUNT [SERVER]
 *   memory [-d DEV] [-g GID] [-m MTU] [-t TCP_PORT] GONE ROLE HANDLER [SERVER]
 *
 * hot: a thread of the server writes a counter without pause into a page, while the client READs it COUNT
 *      times and the server WRITEs the page to the client. No operation may fail, and what the client reads
 *      may not run backwards.
 * GONE (unmap, protect, truncate): how the memory goes, after it was registered and before it is used.
 * ROLE write, read: the server's memory is gone under the client's operation.
 *      send, response: the client's own memory is gone, under its SEND or its READ.
 *      receive: the server's posted receive buffer is gone.
 * HANDLER none, before, after: whether and when the program installs a SIGSEGV and SIGBUS handler of its own,
 *      seen from opening the device. It may not be called.
 */
#include "pair.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#define PAGES 4
#define SIZE (PAGES * 4096u)

static volatile sig_atomic_t stop;

static void on_fault(int number)
{
	static const char text[] = "the program's own handler was called\n";
	(void)number;
	if (write(2, text, sizeof text - 1)) _exit(3);
	_exit(3);
}

static void install(void)
{
	struct sigaction action = { .sa_handler = on_fault };
	if (sigaction(SIGSEGV, &action, NULL) || sigaction(SIGBUS, &action, NULL)) die("sigaction");
}

static struct ibv_mr *reg(void *at)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, at, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!mr) die("reg_mr");
	return mr;
}

static void *count_up(void *page)
{
	volatile uint64_t *word = page;
	for (uint64_t n = 1; !stop; n++) for (int i = 0; i < 512; i += 64) word[i] = n;
	return NULL;
}

static int hot(long count, const char *host)
{
	uint64_t *page, last = 0;
	if (posix_memalign((void **)&page, 4096, SIZE)) die("memory");
	memset(page, 0, SIZE);
	struct ibv_mr *mr = reg(page);
	connect_peer(host, mr);
	if (host) {
		/* the second page is where READs land, the first is what the server writes to */
		long done = 0;
		for (; done < count; done++) {
			struct ibv_wc wc;
			/* most READs are of the counter, some of the whole page: several packets at a small MTU */
			uint32_t length = done % 16 ? 8 : 4096;
			post_send(IBV_WR_RDMA_READ, done, page + 512, length, mr->lkey, it.addr, IBV_SEND_SIGNALED);
			int n;
			while (!(n = ibv_poll_cq(cq, 1, &wc))) ;
			if (n < 0) die("poll_cq");
			good(&wc);
			if (page[512] < last) { fprintf(stderr, "read %ld ran backwards\n", done); return 1; }
			last = page[512];
		}
		printf("%ld reads, the last saw %llu\n", done, (unsigned long long)last);
		if (!last) { fprintf(stderr, "the counter never moved\n"); return 1; }
		meet();
	} else {
		pthread_t thread;
		if (pthread_create(&thread, NULL, count_up, page)) die("pthread_create");
		/* WRITEs of the hot page, until the client is done; it says so on the socket */
		long writes = 0;
		char c;
		while (recv(sock, &c, 1, MSG_DONTWAIT) < 0) {
			struct ibv_wc wc;
			post_send(IBV_WR_RDMA_WRITE, writes, page, 4096, mr->lkey, it.addr, IBV_SEND_SIGNALED);
			int n;
			while (!(n = ibv_poll_cq(cq, 1, &wc))) ;
			if (n < 0) die("poll_cq");
			good(&wc);
			writes++;
		}
		give("x", 1);
		stop = 1;
		pthread_join(thread, NULL);
		printf("%ld writes\n", writes);
		if (!writes) return 1;
	}
	meet();
	return 0;
}

static void go_away(const char *how, void *at, int fd)
{
	int failed = !strcmp(how, "unmap") ? munmap(at, SIZE) : !strcmp(how, "protect") ? mprotect(at, SIZE, PROT_NONE) : ftruncate(fd, 0);
	if (failed) die(how);
}

static int expect(int status, int a, int b, const char *who)
{
	printf("%s: %s\n", who, ibv_wc_status_str(status));
	if (status == a || status == b) return 0;
	fprintf(stderr, "%s: status %d, expected %d or %d\n", who, status, a, b);
	return 1;
}

static int gone(const char *how, const char *role, const char *handler, const char *host)
{
	int own = !strcmp(role, "send") || !strcmp(role, "response"), receive = !strcmp(role, "receive");
	if (!strcmp(handler, "before")) install();
	open_device();
	create_qp();
	if (!strcmp(handler, "after")) install();
	int fd = memfd_create("gone", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, SIZE)) die("memfd");
	void *going = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	void *staying = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (going == MAP_FAILED || staying == MAP_FAILED) die("mmap");
	struct ibv_mr *gone_mr = reg(going), *mr = reg(staying);
	connect_peer(host, host || own ? mr : gone_mr);
	/* the end whose memory goes is the server, except where the client uses its own */
	if (!host && receive) post_recv(1, going, SIZE, gone_mr->lkey);
	if (!host && !strcmp(role, "send")) post_recv(1, staying, SIZE, mr->lkey);
	if (!host == !own) go_away(how, going, fd);
	meet();
	int bad = 0;
	if (host) {
		int op = receive || !strcmp(role, "send") ? IBV_WR_SEND : !strcmp(role, "write") ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
		void *at = own ? going : staying;
		post_send(op, 1, at, SIZE, own ? gone_mr->lkey : mr->lkey, it.addr, IBV_SEND_SIGNALED);
		int status = reap(1);
		if (own) bad = expect(status, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_PROT_ERR, "client");
		else if (receive) bad = expect(status, IBV_WC_REM_OP_ERR, IBV_WC_REM_ACCESS_ERR, "client");
		else bad = expect(status, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR, "client");
	} else if (receive) {
		bad = expect(reap(1), IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_PROT_ERR, "server");
	}
	meet();
	/* the process lives, and so does its device */
	if (!ibv_alloc_pd(context)) die("alloc_pd afterwards");
	return bad;
}

int main(int argc, char **argv)
{
	int first = options(argc, argv), left = argc - first;
	char **word = argv + first;
	if (left >= 2 && !strcmp(word[0], "hot")) {
		open_device();
		create_qp();
		return hot(atol(word[1]), left > 2 ? word[2] : NULL);
	}
	if (left >= 3) return gone(word[0], word[1], word[2], left > 3 ? word[3] : NULL);
	fprintf(stderr, "memory: hot COUNT [SERVER] | GONE ROLE HANDLER [SERVER]\n");
	return 2;
}
