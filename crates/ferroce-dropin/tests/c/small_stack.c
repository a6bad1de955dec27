/* Every kind of call from a thread with the smallest stack that may be, with a page below it that ends the program if a call
 * needs more. With SAY in the environment, the octets of stack that each step used, the thread's own included. With PLAIN,
 * which is for valgrind, the program itself does not look at stacks of threads that ended. */
#include "calls.h"

#include <pthread.h>

enum { PAGE = 1 << 16, PATTERN = 0xa5 };

static void *run(void *call)
{
	((void (*)(void))call)();
	return NULL;
}

/* The name is printed before the call, for the case that the program ends in it. */
static void step(const char *name, void (*call)(void))
{
	static unsigned char *stack;
	size_t size = sysconf(_SC_THREAD_STACK_MIN), untouched = 0;
	int plain = getenv("PLAIN") != NULL;
	pthread_attr_t attr;
	pthread_t thread;

	if (!stack) {
		stack = mmap(NULL, PAGE + size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(stack != MAP_FAILED && mprotect(stack += PAGE, size, PROT_READ | PROT_WRITE) == 0);
	}
	if (!plain)
		memset(stack, PATTERN, size);
	fprintf(stderr, "%s\n", name);
	NEED(pthread_attr_init(&attr) == 0 && pthread_attr_setstack(&attr, stack, size) == 0);
	NEED(pthread_create(&thread, &attr, run, (void *)call) == 0 && pthread_join(thread, NULL) == 0);
	while (!plain && untouched < size && stack[untouched] == PATTERN)
		untouched++;
	if (getenv("SAY"))
		fprintf(stderr, "\t%zu of %zu octets\n", size - untouched, size);
}

static void nothing(void) {}

int main(void)
{
	raise_lo();
	STEP(nothing);
	all_steps();
	return finish();
}
