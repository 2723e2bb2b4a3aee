// SnapStreamGather: copies sinks, ring and kept positions to the compressed cache, keys and values in
// one pass, 16 bytes for each thread and tensor.
#pragma once

#include "kernels/device.h"
#include "kernels/geometry.h"
#include "kernels/problem.h"

namespace snapexport {

SNAPEXPORT_BOTH int cache_slots(const GatherProblem& p) {
  return p.sink + p.recent + p.spare + p.K;
}

// The position in a cache slot of the KV head, -1 if the slot is empty.
__device__ __forceinline__ int slot_position(const GatherProblem& p, const GatherTensors& tensors,
                                             int head, int slot) {
  const int length = clamp_length(*tensors.prompt_length, p.T), ring = p.recent + p.spare;
  if (is_whole(p.sink, p.recent, p.K, length)) return slot < length ? slot : -1;
  const int window = p.sink + ring;
  if (slot < window) return window_position(slot, p.sink, ring, length);
  const int64_t kept = tensors.positions[static_cast<int64_t>(head) * p.K + slot - window];
  return 0 <= kept && kept < p.T ? static_cast<int>(kept) : -1;
}

// Grid: 16-byte pieces of a head's cache slots, KV heads. vectors: pieces of a row.
__global__ void __launch_bounds__(kThreads)
    gather_rows(GatherProblem p, GatherTensors tensors, int vectors) {
  const int slots = cache_slots(p), head = blockIdx.y;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(slots) * vectors) return;
  const int slot = static_cast<int>(i / vectors), vector = static_cast<int>(i % vectors);
  const int position = slot_position(p, tensors, head, slot);
  uint4 key{0, 0, 0, 0}, value{0, 0, 0, 0};
  if (position >= 0) {
    const int64_t source = (static_cast<int64_t>(head) * p.T + position) * vectors + vector;
    key = __ldg(static_cast<const uint4*>(tensors.key) + source);
    value = __ldg(static_cast<const uint4*>(tensors.value) + source);
  }
  const int64_t target = (static_cast<int64_t>(head) * slots + slot) * vectors + vector;
  static_cast<uint4*>(tensors.present_key)[target] = key;
  static_cast<uint4*>(tensors.present_value)[target] = value;
}

}  // namespace snapexport
