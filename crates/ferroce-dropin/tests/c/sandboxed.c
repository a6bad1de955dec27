/* Once the device is open, each call makes the system calls that the book lists for it and no others, because programs
 * enter sandboxes then. Each step runs on a thread whose filter lets the calls of its row pass, beside those that any call
 * may make. With TRACE in the environment there is no filter, and writes to descriptor -1 mark the steps for strace -f. */
#include "calls.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef SYS_poll
#define SYS_poll SYS_ppoll
#endif
#define N(name) { #name, SYS_##name }
static const struct {
	const char *name;
	unsigned int number;
} numbers[] = {
	N(bind), N(clone3), N(connect), N(epoll_create1), N(epoll_ctl), N(epoll_pwait), N(eventfd2), N(fcntl), N(fstat), N(ftruncate), N(getpeername),
	N(getrandom), N(getsockname), N(getsockopt), N(ioctl), N(listen), N(memfd_create), N(poll), N(ppoll), N(prctl), N(process_vm_readv),
	N(process_vm_writev), N(read), N(recvfrom), N(recvmmsg), N(recvmsg), N(rt_sigaction), N(sendmmsg), N(sendmsg), N(sendto), N(setsockopt), N(shutdown), N(socket),
	N(socketpair),
};

/* What any call may do, as the page has it. The last two lines are for builds with debug assertions, which look at descriptors before they
 * close them, and for the ends of threads and the report of a failure. */
static const unsigned int always[] = {
	SYS_mmap, SYS_munmap, SYS_mprotect, SYS_madvise, SYS_mremap, SYS_brk, SYS_futex, SYS_sched_yield, SYS_clock_nanosleep, SYS_membarrier, SYS_clock_gettime, SYS_rt_sigprocmask,
	SYS_close, SYS_write, SYS_getpid, SYS_gettid, SYS_sched_getaffinity,
	SYS_fcntl,
	SYS_rt_sigreturn, SYS_set_robust_list, SYS_rseq, SYS_exit, SYS_exit_group,
};

/* The two columns of the page, and the steps. */
static const struct {
	const char *calls, *systems, *steps;
} rows[] = {
	{
		"`ibv_alloc_*`, `ibv_create_cq`, `ibv_create_qp`, `ibv_create_srq`, `ibv_post_recv`, `ibv_query_*`, `ibv_open_xrcd`, "
		"`rdma_create_id`, and the ends of such objects",
		"none",
		"alloc_pd create_cqs create_qps create_srq other_objects xrc query receive create_ids destroy_rest",
	},
	{
		"`ibv_create_comp_channel`, `rdma_create_event_channel`, `rdma_create_qp`, `rdma_resolve_route`",
		"`epoll_create1`, `epoll_ctl`, `eventfd2`",
		"create_channel create_event_channel create_id_qps create_accepted_qp resolve_route",
	},
	{
		"`ibv_reg_mr`, `ibv_rereg_mr`, `ibv_dereg_mr`, `rdma_reg_*`",
		"`ioctl`, `rt_sigaction`",
		"register_memory register_more id_registrations",
	},
	{
		"`ibv_post_send`, `ibv_poll_cq`, `ibv_req_notify_cq`, `ibv_wr_*`, `ibv_start_poll`, `rdma_post_*`, `ibv_destroy_qp`",
		"`epoll_ctl`, `epoll_pwait`, `eventfd2`, `poll`, `ppoll`, `process_vm_readv`, `process_vm_writev`, `read`, `recvfrom`, "
		"`recvmmsg`, `recvmsg`, `rt_sigaction`, `sendmmsg`, `sendmsg`, `sendto`",
		"poll_empty send_one poll_both read_one write_extended poll_extended free_extended destroy_qps id_posts send_peer "
		"write_peer read_peer",
	},
	{
		"`ibv_get_cq_event`, `ibv_get_async_event`, `rdma_get_send_comp`, `rdma_get_recv_comp`",
		"`epoll_ctl`, `epoll_pwait`, `eventfd2`, `poll`, `ppoll`, `process_vm_readv`, `process_vm_writev`, `read`, `recvfrom`, "
		"`recvmmsg`, `recvmsg`, `rt_sigaction`, `sendmmsg`, `sendmsg`, `sendto`",
		"get_cq_event id_completions",
	},
	{
		"`ibv_modify_qp`, `ibv_create_ah`, `rdma_accept`",
		"`bind`, `connect`, `epoll_ctl`, `epoll_pwait`, `fcntl`, `fstat`, `ftruncate`, `getpeername`, `getsockname`, "
		"`getsockopt`, `memfd_create`, `poll`, `ppoll`, `process_vm_readv`, `process_vm_writev`, `recvfrom`, `recvmmsg`, "
		"`recvmsg`, `rt_sigaction`, `sendmmsg`, `sendmsg`, `sendto`, `setsockopt`, `socket`",
		"modify_qps modify_datagram_qp create_ah accept_client",
	},
	{
		"`rdma_bind_addr`, `rdma_listen`, `rdma_resolve_addr`, `rdma_connect`, `rdma_get_cm_event`, `rdma_disconnect`, "
		"`rdma_destroy_id`",
		"`bind`, `connect`, `epoll_ctl`, `epoll_pwait`, `fcntl`, `fstat`, `ftruncate`, `getpeername`, `getrandom`, `getsockname`, "
		"`getsockopt`, `memfd_create`, `poll`, `ppoll`, `process_vm_readv`, `process_vm_writev`, `recvfrom`, `recvmmsg`, "
		"`recvmsg`, `rt_sigaction`, `sendmmsg`, `sendmsg`, `sendto`, `setsockopt`, `socket`",
		"bind_and_listen resolve_address connect_client take_event disconnect destroy_ids",
	},
	{
		"`rsocket` to `rclose`, `rpoll`",
		"`bind`, `clone3`, `connect`, `epoll_create1`, `epoll_ctl`, `epoll_pwait`, `eventfd2`, `fcntl`, `fstat`, `ftruncate`, "
		"`getpeername`, `getrandom`, `getsockname`, `getsockopt`, `ioctl`, `memfd_create`, `poll`, `ppoll`, `prctl`, "
		"`process_vm_readv`, `process_vm_writev`, `read`, `recvfrom`, `recvmmsg`, `recvmsg`, `rt_sigaction`, `sendmmsg`, "
		"`sendmsg`, `sendto`, `setsockopt`, `socket`",
		"rsocket_listen rsocket_connect rsocket_accept rsocket_data rsocket_wait rsocket_close datagrams_bind datagrams_data "
		"datagrams_close",
	},
	{
		"`umad_*`",
		"`bind`, `poll`, `ppoll`, `recvfrom`, `recvmsg`, `sendto`, `socket`, `socketpair`",
		"umad_open umad_wait umad_close",
	},
	{
		"`ibv_attach_mcast`, `ibv_detach_mcast`, `ibv_create_flow`, all calls on raw packet queue pairs",
		"`bind`, `eventfd2`, `getsockname`, `getsockopt`, `poll`, `ppoll`, `recvfrom`, `recvmmsg`, `recvmsg`, `rt_sigaction`, `sendmmsg`, `sendmsg`, `sendto`, "
		"`setsockopt`, `socket`",
		"attach_group detach_group make_raw_qp make_flow raw_frame destroy_raw",
	},
	{
		"all calls above on iWARP",
		"`bind`, `connect`, `epoll_create1`, `epoll_ctl`, `epoll_pwait`, `eventfd2`, `getpeername`, `getsockname`, `getsockopt`, `ioctl`, "
		"`listen`, `poll`, `ppoll`, `read`, `recvfrom`, `recvmsg`, `rt_sigaction`, `sendmsg`, `sendto`, `setsockopt`, `shutdown`, `socket`",
		"create_event_channel create_ids bind_and_listen resolve_address take_event resolve_route create_id_qps connect_client "
		"create_accepted_qp accept_client id_registrations id_posts id_completions disconnect destroy_ids",
	},
};

static const char *now;

static void trapped(int signal, siginfo_t *info, void *context)
{
	char text[160];
	int length = snprintf(text, sizeof text, "%s: system call %d is in no list\n", now, info->si_syscall);

	(void)signal, (void)context;
	_exit(write(STDERR_FILENO, text, length) == length ? 1 : 2);
}

/* Whether the word is one of those in the list, which spaces and commas part. */
static int has(const char *list, const char *word)
{
	size_t length = strlen(word);

	for (const char *at = list; (at = strstr(at, word)) != NULL; at += length)
		if ((at == list || strchr(" ,`", at[-1])) && (!at[length] || strchr(" ,`", at[length])))
			return 1;
	return 0;
}

static void filter(const char *systems)
{
	enum { MOST = 100 };
	struct sock_filter code[2 * MOST + 2] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
	unsigned int allowed[MOST], count = 0, length = 1, quotes = 0;

	for (size_t i = 0; i < sizeof always / sizeof *always; i++)
		allowed[count++] = always[i];
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (has(systems, numbers[i].name))
			allowed[count++] = numbers[i].number;
	for (const char *at = systems; (at = strchr(at, '`')) != NULL; at++)
		quotes++;
	/* Each name has its number. */
	NEED(quotes / 2 == count - sizeof always / sizeof *always);
	for (unsigned int i = 0; i < count; i++) {
		code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
		code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);

	struct sock_fprog program = { .len = length, .filter = code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("no filter of system calls");
		exit(77);
	}
}

static void mark(const char *text)
{
	if (getenv("TRACE"))
		syscall(SYS_write, -1, text, strlen(text));
}

static void *run(void *call)
{
	char text[80];
	/* The last row is that of iWARP. */
	size_t row = getenv("IWARP") ? sizeof rows / sizeof *rows - 1 : 0;

	while (row < sizeof rows / sizeof *rows && !has(rows[row].steps, now))
		row++;
	snprintf(text, sizeof text, "STEP %s\n", now);
	mark(text);
	if (!getenv("TRACE")) {
		if (row == sizeof rows / sizeof *rows)
			fprintf(stderr, "%s is in no row\n", now), exit(1);
		filter(rows[row].systems);
	}
	((void (*)(void))call)();
	mark("END\n");
	return NULL;
}

static void step(const char *name, void (*call)(void))
{
	pthread_t thread;

	/* The device opens, and closes. The third makes two ends, by calls that have steps of their own. */
	if (has("list_devices open_one make_extended close_device", name))
		return call();
	now = name;
	fprintf(stderr, "%s\n", name);
	NEED(pthread_create(&thread, NULL, run, (void *)call) == 0 && pthread_join(thread, NULL) == 0);
}

/* What this program and its peer tell each other. */
static struct shared {
	volatile int ready, connected;
	uint32_t qpn[2], rkey;
	uint64_t address;
} *shared;
static struct end near_end;
static pid_t other;

static void await(volatile int *flag)
{
	while (!*flag) {
		NEED(waitpid(other, NULL, WNOHANG) == 0);
		usleep(1000);
	}
}

/* Another program, with the broker. It answers until this program ends. */
_Noreturn static void peer(void)
{
	struct ibv_wc wc;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	open_pd();
	near_end = make_end();
	shared->qpn[1] = near_end.qp->qp_num;
	shared->rkey = near_end.mr->rkey;
	shared->address = (uintptr_t)near_end.memory;
	shared->ready = 1;
	while (!shared->qpn[0])
		usleep(1000);
	to_rts(&near_end, shared->qpn[0]);
	post_receive(&near_end, 1, 0, 4096);
	shared->connected = 1;
	for (;;)
		if (ibv_poll_cq(near_end.cq, 1, &wc) == 0)
			usleep(100);
}

/* A program for each processor that leaves no other one idle. */
static void crowd(void)
{
	for (long left = sysconf(_SC_NPROCESSORS_ONLN); left > 0; left--) {
		pid_t child = fork();

		NEED(child >= 0);
		if (child > 0)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(60);
		for (;;)
			;
	}
}

static void to_peer(enum ibv_wr_opcode opcode, size_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)near_end.memory, .length = length, .lkey = near_end.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;

	wr.wr.rdma.remote_addr = shared->address;
	wr.wr.rdma.rkey = shared->rkey;
	NEED(ibv_post_send(near_end.qp, &wr, &bad) == 0);
	while (ibv_poll_cq(near_end.cq, 1, &wc) == 0)
		;
	CHECK(wc.status == IBV_WC_SUCCESS);
}
static void send_peer(void) { to_peer(IBV_WR_SEND, 4096); }
static void write_peer(void) { to_peer(IBV_WR_RDMA_WRITE, 60000); }
static void read_peer(void)
{
	/* Where processors are busy, the wait for some of them sleeps. */
	for (int count = 0; count < 100; count++)
		to_peer(IBV_WR_RDMA_READ, 60000);
}

static void with_peer(void)
{
	open_pd();
	near_end = make_end();
	to_rts(&near_end, shared->qpn[1]);
	shared->qpn[0] = near_end.qp->qp_num;
	await(&shared->connected);
	STEP(send_peer);
	STEP(write_peer);
	STEP(read_peer);
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = trapped, .sa_flags = SA_SIGINFO };
	struct sockaddr_storage at = address_of("127.0.0.1", 0);
	struct rdma_event_channel *used;
	struct rdma_cm_id *id;
	int number;

	/* Trimming the heap of another thread makes glibc open /proc/sys/vm/overcommit_memory. */
	mallopt(M_ARENA_MAX, 1);
	NEED(sigaction(SIGSYS, &action, NULL) == 0);
	raise_lo();
	/* The look behind an ACK timeout is none of these calls. */
	timeout_code = 20;
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED);
	other = fork();
	NEED(other >= 0);
	if (other == 0)
		peer();
	await(&shared->ready);
	if (getenv("CROWD"))
		crowd();
	if (!getenv("IWARP"))
		with_peer();
	/* The first of each kind opens the device for librdmacm, rsockets and libibumad. */
	NEED((used = rdma_create_event_channel()) && rdma_create_id(used, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(id, (struct sockaddr *)&at) == 0 && rdma_listen(id, 1) == 0);
	if (getenv("IWARP")) {
		NEED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0 && resolve_addr(id, "127.0.0.1", 1) == 0);
		NEED(id->verbs->device->transport_type == IBV_TRANSPORT_IWARP);
	} else {
		NEED((number = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0 && rclose(number) == 0);
		NEED(umad_init() == 0);
	}
	all_steps();
	return finish();
}
