// Device functions of the kernels, for a GPU and for the emulator, which runs a block's threads one
// after the other on the host. Kernels use only CUDA's names and these.
#pragma once

#ifdef __CUDACC__

#include <cuda_runtime.h>

#include <cstdint>

namespace snapexport {

// The block's dynamic shared memory.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char snapexport_shared[];
  return snapexport_shared;
}

// 2^x to 2 ulp, denormals to zero (PTX ISA, ex2).
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// c[16 x 8] += a[16 x 16] b[16 x 8], fp32 sums; fragments as PTX ISA lays out mma.m16n8k16.
__device__ __forceinline__ void mma_float16(float (&c)[4], const uint32_t (&a)[4],
                                            const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma_bfloat16(float (&c)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes,
            cudaStream_t stream, Arguments... arguments) {
  kernel<<<grid, threads, shared_bytes, stream>>>(arguments...);
}

}  // namespace snapexport

#else
#include "emulator.h"
#endif
