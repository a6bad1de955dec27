/* Shared by the tests of GPU memory: the stand-in for CUDA's driver, loaded as programs load it, and its memory. */
#ifndef GPU_H
#define GPU_H

#include "libcuda.h"
#include "pair.h"

#include <dlfcn.h>

#define POINTER(result, name, arguments) static result(*name) arguments;
CUDA_CALLS(POINTER)

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static inline void load_cuda(void)
{
	CUcontext context;
	void *library = dlopen(getenv("FAKE_CUDA"), RTLD_NOW | RTLD_LOCAL);

	NEED(library);
#define LOAD(result, name, arguments) NEED((name = (result(*) arguments)dlsym(library, #name)));
	CUDA_CALLS(LOAD)
	NEED(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0);
	NEED(((CUresult(*)(CUcontext))dlsym(library, "cuCtxPushCurrent_v2"))(context) == 0);
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

/* Memory as the device sees it, or the processor where it is not the device's. */
static inline unsigned char *seen(const void *address)
{
	volatile void *view = fake_view((CUdeviceptr)address);

	return view ? (unsigned char *)view : (unsigned char *)address;
}

static inline void fill(void *address, size_t length, unsigned int seed)
{
	unsigned char *octets = seen(address);

	for (size_t i = 0; i < length; i++)
		octets[i] = (seed = seed * 1103515245 + 12345) >> 16;
}

/* The first octet that is not what `fill` wrote; `length` if there is none. */
static inline size_t differs(const void *address, size_t length, unsigned int seed)
{
	unsigned char *octets = seen(address);

	for (size_t i = 0; i < length; i++)
		if (octets[i] != (unsigned char)((seed = seed * 1103515245 + 12345) >> 16))
			return i;
	return length;
}

#endif
