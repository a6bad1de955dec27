/* Calls that wait, each in a thread of its own, until something wakes them all. */
#include "asleep.h"

#include <pthread.h>
#include <sys/syscall.h>

struct row {
	const char *name;
	int (*call)(void);
	int want, why;
	pthread_t thread;
	volatile pid_t waiter;
	int returned, outcome, saved;
};

static void *wait_in_the_call(void *argument)
{
	struct row *row = argument;

	row->waiter = syscall(SYS_gettid);
	row->outcome = row->call();
	row->saved = errno;
	__atomic_store_n(&row->returned, 1, __ATOMIC_RELEASE);
	return NULL;
}

static int is_back(const struct row *row)
{
	return __atomic_load_n(&row->returned, __ATOMIC_ACQUIRE);
}

/* Waits until the thread sleeps in poll, or has returned, which is told. */
static void until_asleep(const struct row *row)
{
	while (!is_back(row) && !sleeps_in_poll(row->waiter))
		usleep(1000);
	if (is_back(row))
		fprintf(stderr, "%s does not wait\n", row->name);
}

/* So long that only a thread that is never woken is not back. */
static void until_back(const struct row *row)
{
	static int tries;

	for (; !is_back(row) && tries < 2000; tries++)
		usleep(10000);
	if (!is_back(row)) {
		fprintf(stderr, "%s still waits\n", row->name);
		failures++;
	} else if (row->outcome != row->want || (row->why && row->saved != row->why)) {
		fprintf(stderr, "%s: %d, errno %d\n", row->name, row->outcome, row->saved);
		failures++;
	}
}
