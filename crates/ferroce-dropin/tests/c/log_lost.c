/* The library reports an error while standard error cannot take the line. The call fails with its errno, at once, and the
 * program goes on, whatever the stream is: full disk, no reader, nobody who reads, no terminal, a file at its limit. */
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { STREAMS = 8 };

static const char *const names[STREAMS] = {
	"a full disk", "no reader, SIGPIPE ignored", "no reader, SIGPIPE as usual", "a full pipe with O_NONBLOCK",
	"a full pipe", "a closed terminal", "a file at its limit", "a closed descriptor",
};

static int full_pipe(int *reader)
{
	int ends[2];
	char page[4096] = { 0 };

	NEED(pipe(ends) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
	while (write(ends[1], page, sizeof page) > 0)
		;
	*reader = ends[0];
	return ends[1];
}

/* A descriptor that takes no line. */
static int stream(int kind)
{
	struct rlimit none = { 0, 0 };
	int ends[2], fd, master;

	signal(SIGPIPE, kind == 1 ? SIG_IGN : SIG_DFL);
	switch (kind) {
	case 0:
		return open("/dev/full", O_WRONLY);
	case 1:
	case 2:
		NEED(pipe(ends) == 0 && close(ends[0]) == 0);
		return ends[1];
	case 3:
		return full_pipe(&ends[0]);
	case 4:
		fd = full_pipe(&ends[0]);
		NEED(fcntl(fd, F_SETFL, 0) == 0);
		return fd;
	case 5:
		master = posix_openpt(O_RDWR | O_NOCTTY);
		NEED(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
		fd = open(ptsname(master), O_RDWR | O_NOCTTY);
		NEED(fd >= 0 && close(master) == 0);
		return fd;
	case 6:
		fd = fileno(tmpfile());
		NEED(setrlimit(RLIMIT_FSIZE, &none) == 0);
		return fd;
	default:
		return -1;
	}
}

/* The environment names a file for the log that cannot be made, and forbids a broker: each is an error that is logged. */
static void child(int kind)
{
	int fd = stream(kind);
	struct ibv_device **list;

	if (fd >= 0 ? dup2(fd, 2) != 2 : close(2) != 0)
		_exit(2);
	list = ibv_get_device_list(NULL);
	_exit(list == NULL && errno == ENOSYS ? 0 : 3);
}

int main(void)
{
	for (int kind = 0; kind < STREAMS; kind++) {
		int status;
		pid_t pid = fork();

		NEED(pid >= 0);
		if (pid == 0)
			child(kind);
		NEED(waitpid(pid, &status, 0) == pid);
		if (status != 0)
			fprintf(stderr, "%s: status %#x\n", names[kind], status);
		CHECK(status == 0);
	}
	return failures != 0;
}
