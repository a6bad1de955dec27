/* The calls of CUDA's driver that tests use, which `libcuda.so.c` has as well, and a few of that alone, to look at its device. */
#ifndef LIBCUDA_H
#define LIBCUDA_H

#include <stddef.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx *CUcontext;
typedef struct CUstream *CUstream;
typedef struct event *CUevent;

struct fake_counters {
	/* Copies, those of them from or to memory that is not pinned, and questions about addresses. */
	unsigned long copies, pageable, queries;
};

#define CUDA_CALLS(call)                                                                    \
	call(CUresult, cuInit, (unsigned int))                                              \
	call(CUresult, cuDevicePrimaryCtxRetain, (CUcontext *, int))                        \
	call(CUresult, cuCtxCreate_v2, (CUcontext *, unsigned int, int))                    \
	call(CUresult, cuCtxDestroy_v2, (CUcontext))                                        \
	call(CUresult, cuCtxPushCurrent_v2, (CUcontext))                                    \
	call(CUresult, cuCtxPopCurrent_v2, (CUcontext *))                                   \
	call(CUresult, cuStreamCreate, (CUstream *, unsigned int))                          \
	call(CUresult, cuStreamSynchronize, (CUstream))                                     \
	call(CUresult, cuMemAlloc_v2, (CUdeviceptr *, size_t))                              \
	call(CUresult, cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                  \
	call(CUresult, cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned int))            \
	call(CUresult, cuMemFree_v2, (CUdeviceptr))                                         \
	call(CUresult, cuMemHostRegister_v2, (void *, size_t, unsigned int))                \
	call(CUresult, cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))         \
	call(CUresult, cuMemGetHandleForAddressRange, (void *, CUdeviceptr, size_t, int, unsigned long long))

/* Null without the stand-in. */
#define STAND_IN_CALLS(call)                                                                \
	call(CUresult, fake_mapped, (CUdeviceptr *, size_t))                                \
	call(CUresult, fake_array, (CUdeviceptr *, size_t))                                 \
	call(volatile void *, fake_view, (CUdeviceptr))                                     \
	call(void, fake_kernel, (int))                                                      \
	call(int, fake_capture, (int))                                                      \
	call(void, fake_concurrent, (int))                                                  \
	call(int, fake_retained, (int))                                                     \
	call(int, fake_depth, (void))                                                       \
	call(struct fake_counters, fake_count, (void))

/* Null with the stand-in, which has no kernels. */
#define KERNEL_CALLS(call)                                                                  \
	call(CUresult, cuModuleLoadData, (void **, const char *))                           \
	call(CUresult, cuModuleGetFunction, (void **, void *, const char *))                \
	call(CUresult, cuLaunchKernel, (void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, \
					unsigned int, CUstream, void **, void **))

#endif
