// CUDA's names on the host, so that the kernels' own source runs in tests without a GPU.
//
// Blocks run one after the other; a block's threads are fibers of one OS thread, switched at
// barriers and warp exchanges. It does not model time or memory order. It finds wrong indices,
// barriers that not all threads reach (it aborts), shared memory read before it is written (it is
// poisoned) or beyond its size (a canary), and most races, by other orders of threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};

using cudaStream_t = struct CUstream_st*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

namespace emulator {

extern dim3 thread_index, block_index, grid_size;
extern unsigned char* shared;

void run(dim3 grid, int threads, int shared_bytes, const std::function<void()>& body);
void block_barrier();
void warp_barrier();
// Each lane of the warp passes `bytes` at `mine`. Returns pointers to the data of all 32 lanes, valid
// until the warp's next exchange but one.
const unsigned char* exchange(const void* mine, size_t bytes);
constexpr size_t kSlot = 64;

}  // namespace emulator

#define threadIdx emulator::thread_index
#define blockIdx emulator::block_index
#define gridDim emulator::grid_size

inline void __syncthreads() { emulator::block_barrier(); }
inline void __syncwarp() { emulator::warp_barrier(); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const auto* slots = emulator::exchange(&value, sizeof(T));
  std::memcpy(&value, slots + ((threadIdx.x % 32) ^ mask) * emulator::kSlot, sizeof(T));
  return value;
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned delta) {
  const unsigned lane = threadIdx.x % 32;
  const auto* slots = emulator::exchange(&value, sizeof(T));
  std::memcpy(&value, slots + (lane < delta ? lane : lane - delta) * emulator::kSlot, sizeof(T));
  return value;
}
template <class T>
T __ldg(const T* source) {
  return *source;
}
inline unsigned atomicAdd(uint32_t* target, uint32_t value) {
  const unsigned before = *target;
  *target += value;
  return before;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

namespace snapexport {

inline unsigned char* shared_memory() { return emulator::shared; }
inline float fast_exp2(float x) { return std::exp2(x); }
void mma_float16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void mma_bfloat16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes, cudaStream_t,
            Arguments... arguments) {
  emulator::run(grid, threads, shared_bytes, [=] { kernel(arguments...); });
}

}  // namespace snapexport
