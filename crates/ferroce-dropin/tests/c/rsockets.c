/* Rsockets within one process: errnos, flags, half-close, waiting, options, mappings, datagrams, and two threads. */
#include "cm.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <sys/wait.h>

static int listener(const char *text, struct sockaddr_storage *at)
{
	socklen_t length = sizeof(*at);
	int fd = rsocket(strchr(text, ':') ? AF_INET6 : AF_INET, SOCK_STREAM, 0);

	NEED(fd >= 0);
	*at = address_of(text, 0);
	NEED(rbind(fd, (void *)at, sizeof(*at)) == 0);
	NEED(rlisten(fd, 5) == 0);
	CHECK(rlisten(fd, 5) == 0);
	NEED(rgetsockname(fd, (void *)at, &length) == 0);
	return fd;
}

/* Two connected ends: the first by rconnect, the second by raccept. */
static void pair(const char *text, int ends[2])
{
	struct sockaddr_storage at, own, peer;
	int listening = listener(text, &at);
	socklen_t length = sizeof(own);

	ends[0] = rsocket(at.ss_family, SOCK_STREAM, IPPROTO_TCP);
	NEED(ends[0] >= 0);
	/* As with TCP, the connect succeeds before the accept. */
	NEED(rconnect(ends[0], (void *)&at, sizeof(at)) == 0);
	CHECK(rconnect(ends[0], (void *)&at, sizeof(at)) == 0);
	memset(&peer, 0, sizeof(peer));
	memset(&own, 0, sizeof(own));
	length = sizeof(peer);
	ends[1] = raccept(listening, (void *)&peer, &length);
	NEED(ends[1] >= 0);
	length = sizeof(own);
	CHECK(rgetsockname(ends[0], (void *)&own, &length) == 0);
	CHECK(length == (at.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)));
	CHECK(memcmp(&own, &peer, length) == 0);
	CHECK(rgetpeername(ends[0], (void *)&own, &length) == 0);
	CHECK(memcmp(&own, &at, 8) == 0);
	CHECK(rclose(listening) == 0);
}

static void wrong_callers(void)
{
	struct sockaddr_storage any = address_of("127.0.0.1", 0), foreign = address_of("10.9.8.7", 0), at;
	struct sockaddr_storage nobody = address_of("127.0.0.1", 9);
	struct pollfd poll_fd = { .events = POLLIN | POLLOUT };
	socklen_t length = sizeof(at), error_length = sizeof(int);
	int bad[] = { -1, 9999, STDOUT_FILENO }, value = 1, error = 0;
	char octet = 0;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		CHECK_MINUS(rbind(bad[i], (void *)&any, sizeof(any)), EBADF);
		CHECK_MINUS(rlisten(bad[i], 1), EBADF);
		CHECK_MINUS(raccept(bad[i], NULL, NULL), EBADF);
		CHECK_MINUS(rconnect(bad[i], (void *)&any, sizeof(any)), EBADF);
		CHECK_MINUS(rshutdown(bad[i], SHUT_RDWR), EBADF);
		CHECK_MINUS(rclose(bad[i]), EBADF);
		CHECK_MINUS(rrecv(bad[i], &octet, 1, 0), EBADF);
		CHECK_MINUS(rsend(bad[i], &octet, 1, 0), EBADF);
		CHECK_MINUS(rread(bad[i], &octet, 1), EBADF);
		CHECK_MINUS(rwrite(bad[i], &octet, 1), EBADF);
		CHECK_MINUS(rgetpeername(bad[i], (void *)&at, &length), EBADF);
		CHECK_MINUS(rgetsockname(bad[i], (void *)&at, &length), EBADF);
		CHECK_MINUS(rsetsockopt(bad[i], SOL_SOCKET, SO_SNDBUF, &value, sizeof(value)), EBADF);
		CHECK_MINUS(rgetsockopt(bad[i], SOL_SOCKET, SO_SNDBUF, &value, &error_length), EBADF);
		CHECK_MINUS(rfcntl(bad[i], F_GETFL), EBADF);
		CHECK_MINUS(riomap(bad[i], &octet, 1, PROT_WRITE, 0, 0), EBADF);
		CHECK_MINUS(riounmap(bad[i], &octet, 1), EBADF);
		CHECK_MINUS(riowrite(bad[i], &octet, 1, 0, 0), EBADF);
	}
	CHECK_MINUS(rsocket(AF_UNIX, SOCK_STREAM, 0), EOPNOTSUPP);
	CHECK_MINUS(rsocket(AF_INET, SOCK_RAW, 0), EOPNOTSUPP);
	CHECK_MINUS(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EOPNOTSUPP);

	int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	NEED(fd >= 0);
	CHECK(rfcntl(fd, F_GETFL) == O_NONBLOCK && rfcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(rfcntl(fd, F_SETFL, 0) == 0 && rfcntl(fd, F_GETFL) == 0);
	CHECK_MINUS(rfcntl(fd, F_GETLK), EOPNOTSUPP);
	CHECK_MINUS(rsend(fd, &octet, 1, 0), ENOTCONN);
	CHECK_MINUS(rrecv(fd, &octet, 1, 0), ENOTCONN);
	CHECK_MINUS(rshutdown(fd, SHUT_WR), ENOTCONN);
	CHECK_MINUS(rshutdown(fd, 7), EINVAL);
	CHECK_MINUS(raccept(fd, NULL, NULL), EINVAL);
	CHECK_MINUS(rgetpeername(fd, (void *)&at, &length), ENOTCONN);
	CHECK_MINUS(riomap(fd, &octet, 1, PROT_WRITE, 0, 0), ENOTCONN);
	CHECK_MINUS(rbind(fd, NULL, 0), EFAULT);
	CHECK_MINUS(rbind(fd, (void *)&any, 4), EINVAL);
	CHECK_MINUS(rbind(fd, (void *)&foreign, sizeof(foreign)), EADDRNOTAVAIL);
	any.ss_family = AF_UNIX;
	CHECK_MINUS(rbind(fd, (void *)&any, sizeof(any)), EAFNOSUPPORT);
	any.ss_family = AF_INET;
	CHECK(rbind(fd, (void *)&any, sizeof(any)) == 0);
	CHECK_MINUS(rbind(fd, (void *)&any, sizeof(any)), EINVAL);
	length = sizeof(at);
	CHECK(rgetsockname(fd, (void *)&at, &length) == 0);
	length = 0;
	CHECK(rgetsockname(fd, NULL, &length) == 0 && length == sizeof(struct sockaddr_in));
	int second = rsocket(AF_INET, SOCK_STREAM, 0);

	CHECK_MINUS(rbind(second, (void *)&at, sizeof(at)), EADDRINUSE);
	CHECK(rclose(fd) == 0);
	CHECK_MINUS(rclose(fd), EBADF);
	CHECK(rbind(second, (void *)&at, sizeof(at)) == 0);
	CHECK_MINUS(rconnect(second, (void *)&nobody, sizeof(nobody)), ECONNREFUSED);
	CHECK_MINUS(rconnect(second, (void *)&nobody, sizeof(nobody)), ENOTCONN);
	CHECK_MINUS(rsend(second, &octet, 1, 0), ENOTCONN);
	CHECK(rclose(second) == 0);

	fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK_MINUS(rconnect(fd, (void *)&nobody, sizeof(nobody)), EINPROGRESS);
	poll_fd.fd = fd;
	CHECK(rpoll(&poll_fd, 1, 10000) == 1);
	CHECK(poll_fd.revents == (POLLIN | POLLOUT | POLLERR));
	error_length = sizeof(error);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_length) == 0 && error == ECONNREFUSED);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_length) == 0 && error == 0);
	CHECK(rclose(fd) == 0);
}

static void options(void)
{
	static const struct {
		int level, name, value, want;
	} cases[] = {
		{ SOL_SOCKET, SO_REUSEADDR, 1, 1 },
		{ SOL_SOCKET, SO_SNDBUF, 30000, 60000 },
		{ SOL_SOCKET, SO_RCVBUF, 5000, 10000 },
		{ SOL_SOCKET, SO_OOBINLINE, 7, 1 },
		{ SOL_SOCKET, SO_KEEPALIVE, 1, 1 },
		{ IPPROTO_TCP, TCP_KEEPIDLE, 5, 5 },
		{ IPPROTO_TCP, TCP_NODELAY, 1, 1 },
		{ IPPROTO_IP, 1 /* IP_TOS */, 32, 32 },
		{ SOL_RDMA, RDMA_SQSIZE, 100, 100 },
		{ SOL_RDMA, RDMA_RQSIZE, 200, 200 },
		{ SOL_RDMA, RDMA_INLINE, 16, 16 },
		{ SOL_RDMA, RDMA_IOMAPSIZE, 300, 256 },
	};
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), ends[2], value = 1;
	socklen_t length;

	NEED(fd >= 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		value = cases[i].value;
		CHECK(rsetsockopt(fd, cases[i].level, cases[i].name, &value, sizeof(value)) == 0);
		value = -1;
		length = sizeof(value);
		CHECK(rgetsockopt(fd, cases[i].level, cases[i].name, &value, &length) == 0);
		if (value != cases[i].want)
			fprintf(stderr, "option %zu: %d\n", i, value);
		CHECK(value == cases[i].want && length == sizeof(value));
	}
	struct linger linger = { .l_onoff = 0 };

	CHECK(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
	length = sizeof(linger);
	CHECK(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length) == 0 && !linger.l_onoff);
	CHECK_MINUS(rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, NULL, 4), EFAULT);
	CHECK_MINUS(rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, 2), EINVAL);
	CHECK_MINUS(rsetsockopt(fd, SOL_SOCKET, 9999, &value, sizeof(value)), EOPNOTSUPP);
	CHECK_MINUS(rgetsockopt(fd, SOL_SOCKET, 9999, &value, &length), EOPNOTSUPP);
	value = 0;
	CHECK_MINUS(rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof(value)), EINVAL);
	CHECK(rclose(fd) == 0);
	pair("127.0.0.1", ends);
	value = 100;
	CHECK_MINUS(rsetsockopt(ends[0], SOL_RDMA, RDMA_SQSIZE, &value, sizeof(value)), EINVAL);
	length = sizeof(value);
	CHECK(rgetsockopt(ends[0], IPPROTO_TCP, TCP_MAXSEG, &value, &length) == 0 && value == 4096);
	struct tcp_info info;

	length = sizeof(info);
	CHECK(rgetsockopt(ends[0], IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
	CHECK(info.tcpi_state == TCP_ESTABLISHED && info.tcpi_snd_cwnd == 384);
	CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0);
}

static void flags(void)
{
	char text[64] = "", more[64] = "";
	struct iovec out[3] = { { "one", 3 }, { NULL, 0 }, { " two three", 10 } };
	struct iovec in[2] = { { text, 4 }, { more, 60 } };
	struct sockaddr_storage peer = {};
	struct msghdr header = { .msg_iov = out, .msg_iovlen = 3 };
	socklen_t length = sizeof(peer);
	int ends[2];

	pair("::1", ends);
	CHECK_MINUS(rrecv(ends[0], text, 1, MSG_DONTWAIT), EAGAIN);
	CHECK_MINUS(rrecv(ends[0], text, 1, MSG_OOB), EOPNOTSUPP);
	CHECK_MINUS(rsend(ends[0], text, 1, MSG_OOB), EOPNOTSUPP);
	CHECK_MINUS(rrecv(ends[0], NULL, 1, 0), EFAULT);
	CHECK_MINUS(rsend(ends[0], NULL, 1, 0), EFAULT);
	CHECK_MINUS(rreadv(ends[0], in, -1), EINVAL);
	CHECK_MINUS(rsendto(ends[0], "x", 1, 0, (void *)&peer, sizeof(peer)), EAFNOSUPPORT);
	peer = address_of("::1", 9);
	CHECK_MINUS(rsendto(ends[0], "x", 1, 0, (void *)&peer, sizeof(peer)), EISCONN);
	CHECK(rrecv(ends[0], NULL, 0, 0) == 0 && rsend(ends[0], NULL, 0, 0) == 0);
	CHECK(rwritev(ends[1], out, 3) == 13);
	CHECK(rrecv(ends[0], text, 5, MSG_PEEK) == 5 && memcmp(text, "one t", 5) == 0);
	CHECK(rrecv(ends[0], text, 64, MSG_PEEK) == 13);
	memset(text, 0, sizeof(text));
	CHECK(rreadv(ends[0], in, 2) == 13);
	CHECK(memcmp(text, "one ", 4) == 0 && memcmp(more, "two three", 9) == 0);
	CHECK(rsendmsg(ends[1], &header, 0) == 13);
	header.msg_control = text;
	header.msg_controllen = 16;
	CHECK_MINUS(rsendmsg(ends[1], &header, 0), EOPNOTSUPP);
	header.msg_iov = in;
	header.msg_iovlen = 2;
	CHECK_MINUS(rrecvmsg(ends[0], &header, 0), EOPNOTSUPP);
	header.msg_control = NULL;
	header.msg_controllen = 0;
	CHECK(rrecvmsg(ends[0], &header, 0) == 13);
	CHECK(rsend(ends[1], "abc", 3, 0) == 3);
	CHECK(rrecvfrom(ends[0], text, 64, 0, (void *)&peer, &length) == 3);
	CHECK(peer.ss_family == AF_INET6 && length == sizeof(struct sockaddr_in6));
	CHECK(rclose(ends[1]) == 0);
	CHECK(rrecv(ends[0], text, 64, 0) == 0 && rrecv(ends[0], text, 64, 0) == 0);
	CHECK_MINUS(rsend(ends[0], "x", 1, 0), ECONNRESET);
	CHECK(rclose(ends[0]) == 0);
}

static int ready(int fd, int timeout)
{
	struct pollfd one = { .fd = fd, .events = POLLIN | POLLOUT };
	int count = rpoll(&one, 1, timeout);

	CHECK(count == (one.revents != 0));
	return one.revents;
}

/* Sends until the buffers are full; returns the number of octets. */
static size_t fill(int fd)
{
	static char octets[10000];
	size_t sent = 0;
	ssize_t count;

	while ((count = rsend(fd, octets, sizeof(octets), MSG_DONTWAIT)) > 0)
		sent += count;
	CHECK(count == -1 && errno == EAGAIN);
	return sent;
}

static void waiting(void)
{
	static char octets[100000];
	struct timeval tenth = { .tv_usec = 100000 };
	int ends[2], pipes[2];
	fd_set readable, writable;
	size_t sent, got = 0;

	NEED(pipe(pipes) == 0);
	pair("127.0.0.1", ends);
	CHECK(ready(ends[0], 0) == POLLOUT && ready(ends[1], -1) == POLLOUT);
	struct pollfd both[3] = { { .fd = ends[0], .events = POLLIN }, { .fd = pipes[0], .events = POLLIN },
				  { .fd = -1, .events = POLLIN } };

	CHECK(rpoll(both, 3, 0) == 0 && rpoll(both, 3, 50) == 0 && rpoll(NULL, 0, 1) == 0);
	CHECK_MINUS(rpoll(NULL, 1, 0), EFAULT);
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(rpoll(both, 3, -1) == 1 && both[1].revents == POLLIN && !both[0].revents);
	CHECK(rsend(ends[1], "y", 1, 0) == 1);
	both[1].events = 0;
	CHECK(rpoll(both, 3, -1) == 1 && both[0].revents == POLLIN);
	FD_ZERO(&readable);
	FD_ZERO(&writable);
	FD_SET(ends[0], &readable);
	FD_SET(pipes[0], &readable);
	FD_SET(ends[0], &writable);
	int most = ends[0] > pipes[0] ? ends[0] : pipes[0];

	CHECK(rselect(most + 1, &readable, &writable, NULL, NULL) == 3);
	CHECK(FD_ISSET(ends[0], &readable) && FD_ISSET(pipes[0], &readable) && FD_ISSET(ends[0], &writable));
	CHECK(rrecv(ends[0], octets, 10, 0) == 1);
	FD_ZERO(&readable);
	FD_SET(ends[0], &readable);
	CHECK(rselect(most + 1, &readable, NULL, NULL, &tenth) == 0 && !FD_ISSET(ends[0], &readable));
	CHECK_MINUS(rselect(-1, NULL, NULL, NULL, NULL), EINVAL);

	sent = fill(ends[0]);
	/* The peer's first grants may arrive late. */
	for (size_t more = 1; more; sent += more) {
		usleep(20000);
		more = fill(ends[0]);
	}
	CHECK(sent >= 65536);
	CHECK(ready(ends[0], 0) == 0 && ready(ends[1], -1) == (POLLIN | POLLOUT));
	while (got < sent) {
		ssize_t count = rrecv(ends[1], octets, sizeof(octets), 0);

		NEED(count > 0);
		got += count;
	}
	CHECK(ready(ends[0], 10000) == POLLOUT);
	CHECK(rclose(ends[0]) == 0);
	CHECK((ready(ends[1], -1) & (POLLIN | POLLHUP)) == (POLLIN | POLLHUP));
	CHECK(rclose(ends[1]) == 0);
	close(pipes[0]);
	close(pipes[1]);
}

/* Newer than the header, so looked up by name. */
static int (*create_set)(int);
static int (*control_set)(int, int, int, struct epoll_event *);
static int (*wait_set)(int, struct epoll_event *, int, int);

static int other_set = -1, other_fd = -1;

static void *add_later(void *unused)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 9 };

	(void)unused;
	usleep(50000);
	CHECK(control_set(other_set, EPOLL_CTL_ADD, other_fd, &event) == 0);
	return NULL;
}

/* As in epoll(7), a set forgets a descriptor that is closed, and takes none that is not open. */
static void closed_descriptors(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 20 }, events[4];
	int set = create_set(EPOLL_CLOEXEC), old[2], next[2], counter = eventfd(1, EFD_CLOEXEC), fresh = eventfd(1, EFD_CLOEXEC);

	NEED(set >= 0 && counter >= 0 && fresh >= 0);
	CHECK_MINUS(control_set(set, EPOLL_CTL_ADD, 9999, &event), EBADF);
	NEED(pipe(old) == 0 && write(old[1], "x", 1) == 1 && pipe(next) == 0 && write(next[1], "y", 1) == 1);
	CHECK(control_set(set, EPOLL_CTL_ADD, old[0], &event) == 0);
	CHECK_MINUS(control_set(set, EPOLL_CTL_ADD, old[0], &event), EEXIST);
	CHECK_MINUS(control_set(set, EPOLL_CTL_ADD, old[0], NULL), EFAULT);
	CHECK_MINUS(control_set(set, EPOLL_CTL_DEL, old[1], NULL), ENOENT);
	CHECK_MINUS(control_set(set, 77, old[0], &event), EINVAL);
	event.data.u64 = 21;
	CHECK(control_set(set, EPOLL_CTL_ADD, counter, &event) == 0);
	CHECK(wait_set(set, events, 4, -1) == 2 && wait_set(set, events, 1, -1) == 1);
	/* Both are closed, and the numbers are given to others. All eventfds are one inode. */
	NEED(dup2(next[0], old[0]) == old[0] && close(next[0]) == 0);
	NEED(dup2(fresh, counter) == counter && close(fresh) == 0);
	CHECK(wait_set(set, events, 4, 0) == 0);
	event.data.u64 = 22;
	CHECK(control_set(set, EPOLL_CTL_ADD, old[0], &event) == 0);
	CHECK(wait_set(set, events, 4, -1) == 1 && events[0].data.u64 == 22 && events[0].events == EPOLLIN);
	event.data.u64 = 23;
	CHECK(control_set(set, EPOLL_CTL_ADD, counter, &event) == 0);
	CHECK(wait_set(set, events, 4, -1) == 2 && events[0].data.u64 + events[1].data.u64 == 45);
	event.data.u64 = 24;
	CHECK(control_set(set, EPOLL_CTL_DEL, old[0], NULL) == 0 && control_set(set, EPOLL_CTL_MOD, counter, &event) == 0);
	CHECK(wait_set(set, events, 4, -1) == 1 && events[0].data.u64 == 24);
	close(counter);
	CHECK(wait_set(set, events, 4, 0) == 0);
	CHECK(rclose(set) == 0);
	close(old[0]);
	close(old[1]);
	close(next[1]);
}

static void sets(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 1 }, events[4];
	int ends[2], pipes[2];
	pthread_t thread;
	char octet;

	create_set = (int (*)(int))dlsym(RTLD_DEFAULT, "repoll_create");
	control_set = (int (*)(int, int, int, struct epoll_event *))dlsym(RTLD_DEFAULT, "repoll_ctl");
	wait_set = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_DEFAULT, "repoll_wait");
	NEED(create_set && control_set && wait_set && pipe(pipes) == 0);
	pair("127.0.0.1", ends);
	int set = create_set(EPOLL_CLOEXEC);

	NEED(set >= 0);
	CHECK_MINUS(create_set(4), EINVAL);
	CHECK_MINUS(wait_set(set, events, 0, 0), EINVAL);
	CHECK_MINUS(wait_set(set, NULL, 1, 0), EFAULT);
	CHECK_MINUS(wait_set(ends[0], events, 4, 0), EINVAL);
	CHECK_MINUS(wait_set(9999, events, 4, 0), EBADF);
	CHECK_MINUS(control_set(set, EPOLL_CTL_ADD, -1, &event), EBADF);
	CHECK_MINUS(control_set(set, EPOLL_CTL_ADD, set, &event), EINVAL);
	CHECK_MINUS(control_set(set, EPOLL_CTL_ADD, ends[0], NULL), EFAULT);
	CHECK_MINUS(control_set(set, EPOLL_CTL_DEL, ends[0], NULL), ENOENT);
	CHECK_MINUS(control_set(set, 77, ends[0], &event), EINVAL);
	CHECK_MINUS(rsend(set, "x", 1, 0), EBADF);
	CHECK(wait_set(set, events, 4, 10) == 0);
	CHECK(control_set(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
	CHECK_MINUS(control_set(set, EPOLL_CTL_ADD, ends[0], &event), EEXIST);
	event.data.u64 = 2;
	CHECK(control_set(set, EPOLL_CTL_ADD, pipes[0], &event) == 0);
	CHECK(wait_set(set, events, 4, 30) == 0);
	CHECK(rsend(ends[1], "x", 1, 0) == 1);
	CHECK(wait_set(set, events, 4, -1) == 1 && events[0].data.u64 == 1 && events[0].events == EPOLLIN);
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(wait_set(set, events, 4, -1) == 2 && wait_set(set, events, 1, -1) == 1);
	CHECK(rrecv(ends[0], &octet, 1, 0) == 1);
	CHECK(wait_set(set, events, 4, 0) == 1 && events[0].data.u64 == 2);
	close(pipes[0]);
	CHECK(wait_set(set, events, 4, 10) == 0);
	event = (struct epoll_event){ .events = EPOLLIN | EPOLLOUT, .data.u64 = 3 };
	CHECK(control_set(set, EPOLL_CTL_MOD, ends[0], &event) == 0);
	CHECK(wait_set(set, events, 4, -1) == 1 && events[0].events == EPOLLOUT && events[0].data.u64 == 3);
	CHECK(control_set(set, EPOLL_CTL_DEL, ends[0], NULL) == 0);
	CHECK(wait_set(set, events, 4, 0) == 0);
	/* A closed rsocket leaves the set, and the next one with its number is another member. */
	int again[2], tries = 0, old = ends[0];

	event = (struct epoll_event){ .events = EPOLLIN, .data.u64 = 4 };
	CHECK(control_set(set, EPOLL_CTL_ADD, old, &event) == 0);
	CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0);
	CHECK(wait_set(set, events, 4, 0) == 0);
	/* ENOENT if another thread has opened something of this number. */
	CHECK(control_set(set, EPOLL_CTL_DEL, old, NULL) == -1 && (errno == EBADF || errno == ENOENT));
	CHECK(control_set(set, EPOLL_CTL_MOD, old, &event) == -1 && (errno == EBADF || errno == ENOENT));
	do {
		pair("127.0.0.1", again);
	} while (again[0] != old && again[1] != old && ++tries < 20);
	int fresh = again[0] == old ? 0 : 1;

	NEED(again[fresh] == old);
	CHECK(rsend(again[!fresh], "z", 1, 0) == 1);
	CHECK(wait_set(set, events, 4, 10) == 0);
	event.data.u64 = 5;
	CHECK(control_set(set, EPOLL_CTL_ADD, old, &event) == 0);
	CHECK(wait_set(set, events, 4, -1) == 1 && events[0].data.u64 == 5);
	CHECK(control_set(set, EPOLL_CTL_DEL, old, NULL) == 0);
	CHECK(rrecv(old, &octet, 1, 0) == 1);
	ends[0] = again[!fresh];
	ends[1] = again[fresh];
	/* Additions of another thread take effect at once. */
	CHECK(rsend(ends[0], "y", 1, 0) == 1);
	other_set = set;
	other_fd = ends[1];
	NEED(pthread_create(&thread, NULL, add_later, NULL) == 0);
	CHECK(wait_set(set, events, 4, 10000) == 1 && events[0].data.u64 == 9);
	NEED(pthread_join(thread, NULL) == 0);
	CHECK(rclose(set) == 0);
	CHECK_MINUS(wait_set(set, events, 4, 0), EBADF);
	CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0);
	close(pipes[1]);
}

static void half_close(void)
{
	char text[16];
	int ends[2];

	pair("127.0.0.1", ends);
	CHECK(rsend(ends[0], "last", 4, 0) == 4);
	CHECK(rshutdown(ends[0], SHUT_WR) == 0);
	CHECK_MINUS(rsend(ends[0], "x", 1, 0), EPIPE);
	/* Octets sent before are readable first, without a hang-up. */
	CHECK(ready(ends[1], 10000) == (POLLIN | POLLOUT));
	CHECK(rrecv(ends[1], text, 16, MSG_WAITALL) == 4);
	CHECK(rrecv(ends[1], text, 16, 0) == 0);
	CHECK(rsend(ends[1], "answer", 6, 0) == 6);
	CHECK(rrecv(ends[0], text, 16, 0) == 6 && memcmp(text, "answer", 6) == 0);
	CHECK(rshutdown(ends[1], SHUT_WR) == 0);
	CHECK(rrecv(ends[0], text, 16, 0) == 0);
	CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0);
	pair("127.0.0.1", ends);
	CHECK(rshutdown(ends[0], SHUT_RD) == 0);
	CHECK(rrecv(ends[0], text, 16, 0) == 0);
	CHECK(rsend(ends[0], "on", 2, 0) == 2 && rrecv(ends[1], text, 16, 0) == 2);
	CHECK(rshutdown(ends[0], SHUT_RDWR) == 0 && rrecv(ends[1], text, 16, 0) == 0);
	CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0);
}

#define STREAM (8 << 20)

static unsigned char pattern(size_t at)
{
	return at * 31 ^ at >> 8 ^ at >> 16;
}

static void *send_all(void *fd)
{
	static __thread unsigned char octets[70001];
	size_t sent = 0;

	while (sent < STREAM) {
		size_t length = (sent * 7 + 1) % sizeof(octets) + 1;

		if (length > STREAM - sent)
			length = STREAM - sent;
		for (size_t i = 0; i < length; i++)
			octets[i] = pattern(sent + i);
		NEED(rsend(*(int *)fd, octets, length, 0) == (ssize_t)length);
		sent += length;
	}
	return NULL;
}

static void *receive_all(void *fd)
{
	static __thread unsigned char octets[60007];
	size_t got = 0;

	while (got < STREAM) {
		ssize_t count = rrecv(*(int *)fd, octets, (got * 13) % sizeof(octets) + 1, 0);

		NEED(count > 0);
		for (ssize_t i = 0; i < count; i++)
			NEED(octets[i] == pattern(got + i));
		got += count;
	}
	return NULL;
}

static void *receive_blocked(void *fd)
{
	char octet;
	ssize_t count = rrecv(*(int *)fd, &octet, 1, 0);

	CHECK(count == 0 || (count == -1 && errno == EBADF));
	return NULL;
}

static void threads(void)
{
	pthread_t thread[4];
	int ends[2];

	/* Both directions at once: two threads in each rsocket. */
	pair("127.0.0.1", ends);
	for (int i = 0; i < 2; i++) {
		NEED(pthread_create(&thread[i], NULL, send_all, &ends[i]) == 0);
		NEED(pthread_create(&thread[2 + i], NULL, receive_all, &ends[i]) == 0);
	}
	for (int i = 0; i < 4; i++)
		NEED(pthread_join(thread[i], NULL) == 0);
	/* A close wakes all waiting threads. */
	for (int i = 0; i < 2; i++)
		NEED(pthread_create(&thread[i], NULL, receive_blocked, &ends[0]) == 0);
	usleep(100000);
	CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0);
	for (int i = 0; i < 2; i++)
		NEED(pthread_join(thread[i], NULL) == 0);
}

static void mappings(void)
{
	static char memory[10000], octets[3000];
	struct sockaddr_storage at;
	int listening = listener("127.0.0.1", &at), count = 1, ends[2];

	NEED(rsetsockopt(listening, SOL_RDMA, RDMA_IOMAPSIZE, &count, sizeof(count)) == 0);
	ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	NEED(rsetsockopt(ends[0], SOL_RDMA, RDMA_IOMAPSIZE, &count, sizeof(count)) == 0);
	NEED(rconnect(ends[0], (void *)&at, sizeof(at)) == 0);
	ends[1] = raccept(listening, NULL, NULL);
	NEED(ends[1] >= 0);
	CHECK_MINUS(riomap(ends[0], memory, sizeof(memory), PROT_READ, 0, 0), EINVAL);
	CHECK_MINUS(riomap(ends[0], NULL, 4096, PROT_WRITE, 0, 0), EFAULT);
	CHECK(riomap(ends[0], octets, sizeof(octets), PROT_NONE, 0, -1) == (off_t)(uintptr_t)octets);
	CHECK(riomap(ends[0], memory, sizeof(memory), PROT_WRITE, 0, 5000) == 5000);
	CHECK_MINUS(riomap(ends[0], memory, 10, PROT_WRITE, 0, 0), ENOMEM);
	CHECK_MINUS(riowrite(ends[1], octets, 10, 5000, 0), EINVAL);
	/* The next send announces the mapping. */
	CHECK(rsend(ends[0], "x", 1, 0) == 1 && rrecv(ends[1], octets, 1, 0) == 1);
	memset(octets, 'q', sizeof(octets));
	CHECK_MINUS(riowrite(ends[1], octets, 10, 4999, 0), EINVAL);
	CHECK(riowrite(ends[1], octets, sizeof(octets), 6000, 0) == sizeof(octets));
	CHECK(riowrite(ends[1], octets, sizeof(octets), 14000, 0) == 1000);
	CHECK(rsend(ends[1], "y", 1, 0) == 1 && rrecv(ends[0], octets, 1, 0) == 1);
	CHECK(memory[999] == 0 && memory[1000] == 'q' && memory[3999] == 'q' && memory[4000] == 0);
	CHECK(memory[8999] == 0 && memory[9999] == 'q');
	CHECK_MINUS(riounmap(ends[0], memory, 17), EINVAL);
	CHECK(riounmap(ends[0], memory, sizeof(memory)) == 0);
	/* Unmapping frees an entry of the table, and the messages return their credits. */
	for (int i = 0; i < 1000; i++) {
		NEED(riomap(ends[0], memory, 100, PROT_WRITE, 0, i) == i);
		NEED(rsend(ends[0], "x", 1, 0) == 1 && rrecv(ends[1], octets, 1, 0) == 1);
		NEED(riounmap(ends[0], memory, 100) == 0);
	}
	/* A write to closed memory ends the connection. */
	CHECK(riowrite(ends[1], octets, 10, 999, 0) == 10);
	struct pollfd broken = { .fd = ends[1] };

	CHECK(rpoll(&broken, 1, 10000) == 1 && broken.revents == POLLERR);
	CHECK_MINUS(rrecv(ends[1], octets, 1, 0), EIO);
	CHECK(rrecv(ends[1], octets, 1, 0) == 0);
	CHECK_MINUS(rsend(ends[1], octets, 1, 0), ECONNRESET);
	CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0 && rclose(listening) == 0);
}

/* A server at `bound`; clients connect to `text`. */
static void datagrams(const char *bound, const char *text)
{
	struct sockaddr_storage at = address_of(bound, 0), to = address_of(text, 0), from = {};
	socklen_t length = sizeof(at);
	int server = rsocket(at.ss_family, SOCK_DGRAM, 0), client = rsocket(to.ss_family, SOCK_DGRAM, IPPROTO_UDP);
	char octets[4000] = "";
	struct pollfd one = { .fd = server, .events = POLLIN | POLLOUT };

	NEED(server >= 0 && client >= 0);
	CHECK_MINUS(rlisten(server, 1), EOPNOTSUPP);
	CHECK_MINUS(raccept(server, NULL, NULL), EOPNOTSUPP);
	CHECK_MINUS(rsend(client, "x", 1, 0), ENOTCONN);
	CHECK_MINUS(rgetpeername(client, (void *)&from, &length), ENOTCONN);
	NEED(rbind(server, (void *)&at, sizeof(at)) == 0);
	CHECK_MINUS(rbind(server, (void *)&at, sizeof(at)), EINVAL);
	length = sizeof(at);
	NEED(rgetsockname(server, (void *)&at, &length) == 0);
	((struct sockaddr_in *)&to)->sin_port = ((struct sockaddr_in *)&at)->sin_port;
	int family = at.ss_family;
	socklen_t own = length;

	at = to;
	length = at.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	CHECK_MINUS(rrecv(server, octets, 1, MSG_DONTWAIT), EAGAIN);
	CHECK(rpoll(&one, 1, 20) == 1 && one.revents == POLLOUT);
	CHECK_MINUS(rsendto(client, octets, 2049, 0, (void *)&at, length), EMSGSIZE);
	one.events = POLLIN;
	/* The first datagrams are sent by UDP, later ones between the queue pairs. */
	for (int i = 0; i < 100; i++) {
		int size = i * 20;

		memset(octets, i, sizeof(octets));
		CHECK(rsendto(client, octets, size, 0, (void *)&at, length) == size);
		CHECK(rpoll(&one, 1, 10000) == 1 && one.revents == POLLIN);
		socklen_t got = sizeof(from);

		if (i == 50)
			CHECK(rrecv(server, octets, 10, MSG_PEEK) == 10);
		CHECK(rrecvfrom(server, octets, sizeof(octets), 0, (void *)&from, &got) == size);
		CHECK(size == 0 || octets[size - 1] == i);
		CHECK(from.ss_family == family && got == own);
		CHECK(rsendto(server, octets, size, 0, (void *)&from, got) == size);
		CHECK(rrecv(client, octets, sizeof(octets), 0) == size);
	}
	CHECK(rconnect(client, (void *)&at, length) == 0);
	CHECK(rgetpeername(client, (void *)&from, &length) == 0 && memcmp(&from, &at, 8) == 0);
	CHECK(rsend(client, "cut off", 7, 0) == 7);
	CHECK(rrecv(server, octets, 3, 0) == 3 && memcmp(octets, "cut", 3) == 0);
	CHECK_MINUS(rrecv(server, octets, 3, MSG_DONTWAIT), EAGAIN);
	CHECK(rclose(client) == 0 && rclose(server) == 0);
}

static void forked(void)
{
	int ends[2], status = -1;

	pair("127.0.0.1", ends);
	pid_t child = fork();

	NEED(child >= 0);
	if (child == 0) {
		char octet;

		CHECK_MINUS(rrecv(ends[0], &octet, 1, MSG_DONTWAIT), EBADF);
		_exit(finish());
	}
	NEED(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(rsend(ends[0], "x", 1, 0) == 1);
	CHECK(rclose(ends[0]) == 0 && rclose(ends[1]) == 0);
}

static int descriptors(void)
{
	DIR *list = opendir("/proc/self/fd");
	int count = 0;

	NEED(list);
	while (readdir(list))
		count++;
	closedir(list);
	return count;
}

/* Ended connections leave no descriptors, whichever end closed them. */
static void many(void)
{
	struct sockaddr_storage at = {};
	int before = 0, ends[2];
	char octet;

	for (int i = 0; i < 220; i++) {
		if (i == 20)
			before = descriptors();
		pair("127.0.0.1", ends);
		CHECK(rsend(ends[0], "x", 1, 0) == 1 && rrecv(ends[1], &octet, 1, 0) == 1);
		CHECK(rclose(ends[i & 1]) == 0 && rclose(ends[~i & 1]) == 0);
		int fd = rsocket(AF_INET, SOCK_DGRAM, 0);

		at = address_of("127.0.0.1", 9);
		CHECK(rsendto(fd, "x", 1, 0, (void *)&at, sizeof(at)) == 1 && rclose(fd) == 0);
	}
	/* The service closes the connections of vanished peers a moment later. */
	for (int i = 0; i < 100 && descriptors() > before; i++)
		usleep(10000);
	CHECK(descriptors() <= before);
}

int main(void)
{
	raise_lo();
	wrong_callers();
	options();
	flags();
	waiting();
	sets();
	closed_descriptors();
	half_close();
	threads();
	mappings();
	datagrams("127.0.0.1", "127.0.0.1");
	datagrams("::1", "::1");
	datagrams("0.0.0.0", "127.0.0.1");
	datagrams("::", "127.0.0.1");
	datagrams("::", "::1");
	many();
	forked();
	return finish();
}
