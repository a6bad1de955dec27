/* Shared by the tests of GPU memory: CUDA's driver or its stand-in, loaded as programs load it, and memory of the device. */
#ifndef GPU_H
#define GPU_H

#include "libcuda.h"
#include "pair.h"

#include <dlfcn.h>

#define POINTER(result, name, arguments) static result(*name) arguments;
CUDA_CALLS(POINTER)
STAND_IN_CALLS(POINTER)
KERNEL_CALLS(POINTER)

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* For the copies of the test, in a context that each of its threads enters: it waits for no other stream. */
static CUstream own;
static CUcontext primary;

static inline void load_cuda(void)
{
	const char *driver = getenv("CUDA_DRIVER");
	void *library = dlopen(driver ? driver : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(77);
	}
#define FIND(result, name, arguments) name = (result(*) arguments)dlsym(library, #name);
#define LOAD(result, name, arguments) FIND(result, name, arguments) NEED(name);
	CUDA_CALLS(LOAD)
	STAND_IN_CALLS(FIND)
	KERNEL_CALLS(FIND)
	NEED(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&primary, 0) == 0 && cuCtxPushCurrent_v2(primary) == 0);
	NEED(cuStreamCreate(&own, 1) == 0);
}

/* The end's memory becomes the device's. */
static inline void on_gpu(struct end *end, size_t length)
{
	CUdeviceptr memory;

	NEED(cuMemAlloc_v2(&memory, length) == 0);
	NEED(ibv_dereg_mr(end->mr) == 0);
	free(end->memory);
	end->memory = (char *)memory;
	end->mr = ibv_reg_mr(pd, end->memory, length, ALL);
	NEED(end->mr);
}

/* Copies between places, each of the device or of the host. */
static inline void copy(void *to, const void *from, size_t length)
{
	NEED(cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, length, own) == 0);
	/* The stand-in has copied, and does not permit this during a capture. */
	NEED(fake_view || cuStreamSynchronize(own) == 0);
}

static inline uint64_t word_at(const void *address)
{
	uint64_t word;

	copy(&word, address, sizeof(word));
	return word;
}

static inline void set_word(void *address, uint64_t word)
{
	copy(address, &word, sizeof(word));
}

static inline unsigned char *pattern(size_t length, unsigned int seed)
{
	unsigned char *octets = malloc(length);

	NEED(octets);
	for (size_t i = 0; i < length; i++)
		octets[i] = (seed = seed * 1103515245 + 12345) >> 16;
	return octets;
}

static inline void fill(void *address, size_t length, unsigned int seed)
{
	unsigned char *octets = pattern(length, seed);

	copy(address, octets, length);
	free(octets);
}

/* The first octet that is not what `fill` wrote; `length` if there is none. */
static inline size_t differs(const void *address, size_t length, unsigned int seed)
{
	unsigned char *octets = pattern(length, seed), *there = malloc(length);
	size_t first = 0;

	NEED(there);
	copy(there, address, length);
	while (first < length && there[first] == octets[first])
		first++;
	free(octets);
	free(there);
	return first;
}

#endif
