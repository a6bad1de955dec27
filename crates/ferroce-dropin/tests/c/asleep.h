/* Whether a thread of this process sleeps in poll(2) or ppoll(2); 0 is no thread yet. */
#include <stdio.h>
#include <sys/syscall.h>

static int sleeps_in_poll(int thread)
{
	char path[64], line[64];
	long number;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", thread);
	FILE *file = thread ? fopen(path, "r") : NULL;
	int asleep = file && fgets(line, sizeof(line), file) && sscanf(line, "%ld", &number) == 1 &&
		     (
#ifdef SYS_poll
			     number == SYS_poll ||
#endif
			     number == SYS_ppoll);

	if (file)
		fclose(file);
	return asleep;
}
