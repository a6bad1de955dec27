/* A program whose epoll calls go to librdmacm, as librspreload of rdma-core 65 sends them: the library's own may not. */
#include "cm.h"

#include <dlfcn.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

static int (*create)(int), (*control)(int, int, int, struct epoll_event *), (*wait_for)(int, struct epoll_event *, int, int);
static int calls;

int epoll_create1(int flags)
{
	/* A library that comes back here would do so without end. */
	NEED(calls++ < 100);
	return create(flags);
}

int epoll_ctl(int set, int op, int fd, struct epoll_event *event)
{
	NEED(calls++ < 100);
	return control(set, op, fd, event);
}

int epoll_wait(int set, struct epoll_event *events, int room, int timeout)
{
	NEED(calls++ < 100);
	return wait_for(set, events, room, timeout);
}

int main(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 7 };
	int set, plain = eventfd(0, 0), socket;

	NEED(create = dlsym(RTLD_DEFAULT, "repoll_create"));
	NEED(control = dlsym(RTLD_DEFAULT, "repoll_ctl"));
	NEED(wait_for = dlsym(RTLD_DEFAULT, "repoll_wait"));
	set = epoll_create1(0);
	NEED(set >= 0);
	/* Opens the device, and with it the library's own sets. */
	socket = rsocket(AF_INET, SOCK_STREAM, 0);
	NEED(socket >= 0);
	NEED(epoll_ctl(set, EPOLL_CTL_ADD, plain, &event) == 0);
	CHECK(epoll_wait(set, &event, 1, 0) == 0);
	NEED(eventfd_write(plain, 1) == 0);
	memset(&event, 0, sizeof(event));
	CHECK(epoll_wait(set, &event, 1, 10000) == 1);
	CHECK(event.events == EPOLLIN && event.data.u64 == 7);
	CHECK(calls == 4);
	CHECK(rclose(socket) == 0);
	return finish();
}
