/* A stand-in for libcuda.so.1: "device memory" is a memory file that the processor cannot touch at the device's address,
 * and that copies and "kernels" reach by another mapping. Copies are late, in any order between streams, and not in
 * order of addresses. Calls that a real driver refuses are refused: without a context, with dead handles, with memory
 * that is not the device's, and inside a capture.
 * The handle of a context that has ended is that of the next one. */
#define _GNU_SOURCE
#include "libcuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

CUresult cuCtxPushCurrent_v2(CUcontext context);
volatile void *fake_view(CUdeviceptr address);

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, ILLEGAL_CAPTURE = 900, CONTEXT_IS_DESTROYED = 709 };
enum { DEVICES = 2, STACK = 16, ALLOCATIONS = 4096, RANGES = 256 };

struct CUctx {
	int device, dead, retained;
	unsigned long long id;
};

struct copy {
	struct copy *next;
	void *to;
	const void *from;
	size_t length;
	struct event *event;
	unsigned long ticket;
};

struct CUstream {
	struct CUctx *context;
	unsigned long long id;
	int non_blocking, busy;
	struct copy *first, **end;
};

struct event {
	struct CUctx *context;
	unsigned long recorded, done;
};

struct allocation {
	char *device, *view;
	size_t length;
	unsigned long long id;
	struct CUctx *context;
	int ordinal, managed, live, kind;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct CUctx primary[DEVICES], *ended;
static unsigned long long contexts;
static int initialised, concurrent = 1, kernels, capturing, invalidated;
static struct allocation allocations[ALLOCATIONS];
static int count;
static struct {
	char *start;
	size_t length;
} pinned[RANGES];
static int pins;
static struct fake_counters counters;
static _Thread_local struct CUctx *stack[STACK];
static _Thread_local int depth, mode;
static pid_t owner;

static unsigned int drawn(unsigned int most)
{
	static atomic_uint state = 12345;
	unsigned int old = atomic_load(&state), next;

	do {
		next = old ? old : 1;
		next ^= next << 13;
		next ^= next >> 17;
		next ^= next << 5;
	} while (!atomic_compare_exchange_weak(&state, &old, next));
	return next % most;
}

/* The state of a call of this thread: a context, and no capture that it would break. */
static int ready(void)
{
	if (!initialised || owner != getpid())
		return NOT_INITIALIZED;
	if (!depth)
		return INVALID_CONTEXT;
	if (stack[depth - 1]->dead)
		return CONTEXT_IS_DESTROYED;
	if (capturing && mode != 2) {
		invalidated = 1;
		return ILLEGAL_CAPTURE;
	}
	return 0;
}

static struct allocation *at(CUdeviceptr address)
{
	for (int i = 0; i < count; i++) {
		struct allocation *one = &allocations[i];

		if (one->live && address >= (CUdeviceptr)one->device && address - (CUdeviceptr)one->device < one->length)
			return one;
	}
	return NULL;
}

CUresult cuInit(unsigned int flags)
{
	(void)flags;
	for (int i = 0; i < DEVICES; i++)
		primary[i] = (struct CUctx){ .device = i, .id = ++contexts };
	owner = getpid();
	initialised = 1;
	return 0;
}

CUresult cuDeviceGet(int *device, int ordinal)
{
	if (ordinal < 0 || ordinal >= DEVICES)
		return INVALID_VALUE;
	*device = ordinal;
	return 0;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, int device)
{
	(void)device;
	*value = attribute == 89 ? concurrent : 1;
	return 0;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, int device)
{
	*context = &primary[device];
	primary[device].retained++;
	return 0;
}

CUresult cuDevicePrimaryCtxRelease_v2(int device)
{
	primary[device].retained--;
	return 0;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
	*id = context->id;
	return context->dead ? CONTEXT_IS_DESTROYED : 0;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, int device)
{
	(void)flags;
	*context = ended ? ended : calloc(1, sizeof(**context));
	ended = NULL;
	**context = (struct CUctx){ .device = device, .id = ++contexts };
	return cuCtxPushCurrent_v2(*context);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	if (context->dead)
		return CONTEXT_IS_DESTROYED;
	if (depth == STACK)
		return INVALID_VALUE;
	stack[depth++] = context;
	return 0;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	if (!depth)
		return INVALID_CONTEXT;
	*context = stack[--depth];
	return 0;
}

CUresult cuThreadExchangeStreamCaptureMode(int *new)
{
	int old = mode;

	mode = *new;
	*new = old;
	return 0;
}

/* Copies run here, a thread for each stream. */
static void *run(void *argument)
{
	struct CUstream *stream = argument;

	pthread_mutex_lock(&lock);
	for (;;) {
		while (!stream->first || (kernels && !stream->non_blocking))
			pthread_cond_wait(&changed, &lock);
		struct copy *copy = stream->first;

		stream->first = copy->next;
		if (!stream->first)
			stream->end = &stream->first;
		stream->busy = 1;
		pthread_mutex_unlock(&lock);
		if (copy->length) {
			if (!drawn(3))
				usleep(drawn(300));
			size_t half = copy->length / 2;

			memcpy((char *)copy->to + half, (const char *)copy->from + half, copy->length - half);
			if (half && !drawn(8))
				usleep(drawn(50));
			memcpy(copy->to, copy->from, half);
		}
		pthread_mutex_lock(&lock);
		if (copy->event && copy->ticket > copy->event->done)
			copy->event->done = copy->ticket;
		stream->busy = 0;
		pthread_cond_broadcast(&changed);
		free(copy);
	}
	return NULL;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	pthread_t thread;
	int code = ready();

	if (code)
		return code;
	*stream = calloc(1, sizeof(**stream));
	(*stream)->context = stack[depth - 1];
	(*stream)->id = (*stream)->context->id;
	(*stream)->non_blocking = flags & 1;
	(*stream)->end = &(*stream)->first;
	pthread_create(&thread, NULL, run, *stream);
	pthread_detach(thread);
	return 0;
}

static int enqueue(CUstream stream, struct copy one)
{
	int code = ready();

	if (code)
		return code;
	if (!stream || stream->context->dead || stream->id != stream->context->id)
		return CONTEXT_IS_DESTROYED;
	struct copy *copy = malloc(sizeof(*copy));

	*copy = one;
	pthread_mutex_lock(&lock);
	if (copy->event)
		copy->ticket = ++copy->event->recorded;
	*stream->end = copy;
	stream->end = &copy->next;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return 0;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	int code = ready();

	if (code)
		return code;
	pthread_mutex_lock(&lock);
	while (stream->first || stream->busy)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return 0;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	int code = ready();

	(void)flags;
	if (code)
		return code;
	*event = calloc(1, sizeof(**event));
	(*event)->context = stack[depth - 1];
	return 0;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	return enqueue(stream, (struct copy){ .event = event });
}

CUresult cuEventSynchronize(CUevent event)
{
	int code = ready();

	if (code)
		return code;
	pthread_mutex_lock(&lock);
	for (unsigned long want = event->recorded; event->done < want;)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return 0;
}

CUresult cuMemHostRegister_v2(void *start, size_t length, unsigned int flags)
{
	int code = ready();

	(void)flags;
	if (code)
		return code;
	pthread_mutex_lock(&lock);
	if (pins < RANGES) {
		pinned[pins].start = start;
		pinned[pins++].length = length;
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

/* Checks a copy between a device's memory and the host's; its place in our mapping. */
static char *checked(CUdeviceptr device, const void *host, size_t length)
{
	int is_pinned = 0;

	pthread_mutex_lock(&lock);
	struct allocation *found = at(device);
	size_t offset = found ? device - (CUdeviceptr)found->device : 0;

	for (int i = 0; i < pins; i++)
		is_pinned |= (const char *)host >= pinned[i].start &&
			     (const char *)host + length <= pinned[i].start + pinned[i].length;
	counters.copies++;
	counters.pageable += !is_pinned;
	char *view = found && found->kind == 2 && length <= found->length - offset ? found->view + offset : NULL;

	pthread_mutex_unlock(&lock);
	return view;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t length, CUstream stream)
{
	char *view = checked(to, from, length);

	return view ? enqueue(stream, (struct copy){ .to = view, .from = from, .length = length }) : INVALID_VALUE;
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t length, CUstream stream)
{
	char *view = checked(from, to, length);

	return view ? enqueue(stream, (struct copy){ .to = to, .from = view, .length = length }) : INVALID_VALUE;
}

static CUresult allocate(CUdeviceptr *address, size_t length, CUcontext context, int ordinal, int managed, int kind,
			 void *place)
{
	int file = memfd_create("device", MFD_CLOEXEC);
	size_t whole = (length + 4095) & ~(size_t)4095;
	static unsigned long long ids;

	if (file < 0 || ftruncate(file, whole))
		return 2;
	int access = managed ? PROT_READ | PROT_WRITE : PROT_NONE;
	char *device = mmap(place, whole, access, MAP_SHARED | (place ? MAP_FIXED : 0), file, 0);
	char *view = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	close(file);
	pthread_mutex_lock(&lock);
	allocations[count++] = (struct allocation){ device, view, length, ++ids, context, ordinal, managed, 1, kind };
	pthread_mutex_unlock(&lock);
	*address = (CUdeviceptr)device;
	return 0;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t length)
{
	int code = ready();

	return code ? code : allocate(address, length, stack[depth - 1], stack[depth - 1]->device, 0, 2, NULL);
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t length, CUstream stream)
{
	int code = ready();

	(void)stream;
	return code ? code : allocate(address, length, NULL, stack[depth - 1]->device, 0, 2, NULL);
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t length, unsigned int flags)
{
	int code = ready();

	(void)flags;
	return code ? code : allocate(address, length, stack[depth - 1], stack[depth - 1]->device, 1, 2, NULL);
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
	pthread_mutex_lock(&lock);
	struct allocation *found = at(address);

	if (!found || found->device != (char *)address) {
		pthread_mutex_unlock(&lock);
		return INVALID_VALUE;
	}
	found->live = 0;
	pthread_mutex_unlock(&lock);
	/* As the driver, which waits for the device. */
	usleep(5000);
	mmap(found->device, found->length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	return 0;
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t length, int type, unsigned long long flags)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	struct allocation *found = at(address);

	pthread_mutex_unlock(&lock);
	if (!found || type != 1 || length > found->length)
		return INVALID_VALUE;
	/* A file of this length that cannot be mapped, as the driver's: it is open for writing alone. */
	int file = memfd_create("dmabuf", MFD_CLOEXEC);
	char path[32];

	if (file < 0 || ftruncate(file, length))
		return INVALID_VALUE;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	*(int *)handle = open(path, O_WRONLY | O_CLOEXEC);
	close(file);
	return *(int *)handle < 0 ? INVALID_VALUE : 0;
}

CUresult cuPointerGetAttributes(unsigned int number, int *attributes, void **data, CUdeviceptr address)
{
	if (!initialised || owner != getpid())
		return NOT_INITIALIZED;
	if (!depth)
		return INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	struct allocation *found = at(address);

	counters.queries++;
	for (unsigned int i = 0; i < number; i++) {
		switch (attributes[i]) {
		case 1:
			*(CUcontext *)data[i] = found ? found->context : NULL;
			break;
		case 2:
			*(unsigned int *)data[i] = found ? found->kind : 0;
			break;
		case 7:
			*(unsigned long long *)data[i] = found ? found->id : 0;
			break;
		case 8:
			*(unsigned int *)data[i] = found ? found->managed : 0;
			break;
		case 9:
			*(int *)data[i] = found ? found->ordinal : -2;
			break;
		case 11:
			*(CUdeviceptr *)data[i] = found ? (CUdeviceptr)found->device : 0;
			break;
		case 12:
			*(size_t *)data[i] = found ? found->length : 0;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

/* The copies of the program itself are made at once, and not counted. */
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t length, CUstream stream)
{
	volatile void *into = fake_view(to), *out_of = fake_view(from);

	(void)stream;
	memcpy(into ? (void *)into : (void *)to, out_of ? (void *)out_of : (void *)from, length);
	return 0;
}

/* Two mappings side by side, as `cuMemMap` makes them. */
CUresult fake_mapped(CUdeviceptr *address, size_t each)
{
	CUdeviceptr second;
	char *place = mmap(NULL, 2 * each, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int code = allocate(address, each, NULL, 0, 0, 2, place);

	return code ? code : allocate(&second, each, NULL, 0, 0, 2, place + each);
}

CUresult fake_array(CUdeviceptr *address, size_t length)
{
	return allocate(address, length, NULL, 0, 0, 3, NULL);
}

volatile void *fake_view(CUdeviceptr address)
{
	pthread_mutex_lock(&lock);
	struct allocation *found = at(address);
	char *view = found ? found->view + (address - (CUdeviceptr)found->device) : NULL;

	pthread_mutex_unlock(&lock);
	return view;
}

void fake_kernel(int begins)
{
	pthread_mutex_lock(&lock);
	kernels += begins ? 1 : -1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

int fake_capture(int begins)
{
	capturing = begins;
	return invalidated;
}

void fake_concurrent(int is)
{
	concurrent = is;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	pthread_mutex_lock(&lock);
	context->dead = 1;
	ended = context;
	for (int i = 0; i < count; i++)
		if (allocations[i].context == context)
			allocations[i].live = 0;
	pthread_mutex_unlock(&lock);
	return 0;
}

int fake_retained(int device)
{
	return primary[device].retained;
}

int fake_depth(void)
{
	return depth;
}

struct fake_counters fake_count(void)
{
	return counters;
}
