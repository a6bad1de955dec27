/* Shared by the C tests: checks that print their line, the loopback interface of a fresh network namespace, and the device.
 * Exit status: 0 passed, 1 failed, 77 skipped. */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static int failures;

#define CHECK(condition)                                                                         \
	do {                                                                                     \
		int saved_errno = errno;                                                         \
		if (!(condition)) {                                                              \
			fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__,        \
				#condition, saved_errno, strerror(saved_errno));                 \
			failures++;                                                              \
		}                                                                                \
	} while (0)

/* For conditions without which the test cannot continue. */
#define NEED(condition)                                                                          \
	do {                                                                                     \
		int saved_errno = errno;                                                         \
		if (!(condition)) {                                                              \
			fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__,        \
				#condition, saved_errno, strerror(saved_errno));                 \
			exit(1);                                                                 \
		}                                                                                \
	} while (0)

/* A call that returns NULL and sets errno. */
#define CHECK_NULL(call, want)                                                                   \
	do {                                                                                     \
		errno = 0;                                                                       \
		const void *got = (call);                                                        \
		CHECK(got == NULL);                                                              \
		CHECK(errno == (want));                                                          \
	} while (0)

/* A call that returns -1 and sets errno. */
#define CHECK_MINUS(call, want)                                                                  \
	do {                                                                                     \
		errno = 0;                                                                       \
		int got = (call);                                                                \
		CHECK(got == -1);                                                                \
		CHECK(errno == (want));                                                          \
	} while (0)

static inline void raise_lo(void)
{
	struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request))
		perror("lo");
	if (fd >= 0)
		close(fd);
}

/* Opens the first device. */
static inline struct ibv_context *open_device(void)
{
	raise_lo();
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);

	NEED(list);
	NEED(count >= 1 && list[0] && !list[count]);
	struct ibv_context *context = ibv_open_device(list[0]);

	NEED(context);
	ibv_free_device_list(list);
	return context;
}

static inline int finish(void)
{
	if (failures)
		fprintf(stderr, "%d checks failed\n", failures);
	return failures ? 1 : 0;
}

#endif
