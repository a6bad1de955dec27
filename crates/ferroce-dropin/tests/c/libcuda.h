/* The calls of `libcuda.so.c`: those of CUDA's driver that tests use, and a few to look at the device. */
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

CUresult cuCtxPushCurrent_v2(CUcontext context);

#define CUDA_CALLS(call)                                                                    \
	call(CUresult, cuInit, (unsigned int))                                              \
	call(CUresult, cuDevicePrimaryCtxRetain, (CUcontext *, int))                        \
	call(CUresult, cuCtxCreate_v2, (CUcontext *, unsigned int, int))                    \
	call(CUresult, cuCtxPopCurrent_v2, (CUcontext *))                                   \
	call(CUresult, cuMemAlloc_v2, (CUdeviceptr *, size_t))                              \
	call(CUresult, cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                  \
	call(CUresult, cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned int))            \
	call(CUresult, cuMemFree_v2, (CUdeviceptr))                                         \
	call(CUresult, cuMemGetHandleForAddressRange, (void *, CUdeviceptr, size_t, int, unsigned long long)) \
	call(CUresult, fake_mapped, (CUdeviceptr *, size_t))                                \
	call(CUresult, fake_array, (CUdeviceptr *, size_t))                                 \
	call(volatile void *, fake_view, (CUdeviceptr))                                     \
	call(void, fake_kernel, (int))                                                      \
	call(int, fake_capture, (int))                                                      \
	call(void, fake_concurrent, (int))                                                  \
	call(void, fake_end_context, (CUcontext))                                           \
	call(int, fake_depth, (void))                                                       \
	call(struct fake_counters, fake_count, (void))

#endif
