// SnapKVSelect, last part: pools and groups the votes, finds the K-th highest digit by digit, and
// writes the positions in ascending order. Ties go to the lower position. Counts are integers, so the
// order of atomic additions does not change results.
#pragma once

#include "kernels/device.h"
#include "kernels/workspace.h"

namespace snapexport {

// Sum over the threads before this one, and over all of them. shared: [kWarps]. Uniform calls only.
struct BlockSum {
  int before, total;
};
__device__ __forceinline__ BlockSum block_sum(int value, int* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int running = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, running, step);
    if (lane >= step) running += other;
  }
  __syncthreads();  // a call before this one may still be reading
  if (lane == 31) shared[warp] = running;
  __syncthreads();
  BlockSum sum{running - value, 0};
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) sum.before += shared[w];
    sum.total += shared[w];
  }
  return sum;
}

// A head's vote for a position: the sum over the slices of its window.
__device__ __forceinline__ float head_vote(const float* votes, int splits, int T, int position) {
  float vote = 0.0f;
  for (int split = 0; split < splits; ++split) {
    vote += votes[static_cast<int64_t>(split) * T + position];
  }
  return vote;
}

template <bool kMax>
__device__ __forceinline__ float joined(float all, float one) {
  return kMax ? fmaxf(all, one) : all + one;
}

// Pools a thread's run of positions, each pool in ascending order. `first` is the staged place of the
// first pool's lowest position.
template <bool kMax>
__device__ __forceinline__ void pool_run(float (&pooled)[kRun], const float* staged, int first,
                                         int width) {
#pragma unroll
  for (float& pool : pooled) pool = 0.0f;
  if (width < kRun) {
    for (int j = 0; j < width; ++j) {
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        pooled[k] = joined<kMax>(pooled[k], staged[staged_place(first + k + j)]);
      }
    }
    return;
  }
  // Each vote is read once, for all pools that contain it: first some, then all, then some.
#pragma unroll
  for (int j = 0; j < kRun - 1; ++j) {
    const float vote = staged[staged_place(first + j)];
#pragma unroll
    for (int k = 0; k <= j; ++k) pooled[k] = joined<kMax>(pooled[k], vote);
  }
  for (int j = kRun - 1; j < width; ++j) {
    const float vote = staged[staged_place(first + j)];
#pragma unroll
    for (int k = 0; k < kRun; ++k) pooled[k] = joined<kMax>(pooled[k], vote);
  }
#pragma unroll
  for (int j = 0; j < kRun - 1; ++j) {
    const float vote = staged[staged_place(first + width + j)];
#pragma unroll
    for (int k = j + 1; k < kRun; ++k) pooled[k] = joined<kMax>(pooled[k], vote);
  }
}

// Pools the votes of a tile for each query head and groups the heads, into `staged`. A mean ranks as
// its sum does, so nothing is divided. Reads each vote once. Positions that are not eligible count as
// zero, which changes no sum and no maximum.
__device__ __forceinline__ void group_votes(const SelectProblem& p, const float* votes, int splits,
                                            int first, Range eligible, float* staged) {
  float group[kRun];
#pragma unroll
  for (float& one : group) one = 0.0f;
  const int lowest = first - (p.pool_kernel - 1) / 2, own = threadIdx.x * kRun;
  for (int h = 0; h < p.group; ++h, votes += static_cast<int64_t>(splits) * p.T) {
    for (int i = threadIdx.x; i < staged_votes(p.pool_kernel); i += kThreads) {
      staged[staged_place(i)] =
          eligible.contains(lowest + i) ? head_vote(votes, splits, p.T, lowest + i) : 0.0f;
    }
    __syncthreads();
    float pooled[kRun];
    if (p.pool_max) {
      pool_run<true>(pooled, staged, own, p.pool_kernel);
    } else {
      pool_run<false>(pooled, staged, own, p.pool_kernel);
    }
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      group[k] = p.group_max ? fmaxf(group[k], pooled[k]) : group[k] + pooled[k];
    }
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < kRun; ++k) staged[staged_place(own + k)] = group[k];
  __syncthreads();
}

// The pooled and grouped vote of one position, read from global memory: for pools too wide to stage.
__device__ __forceinline__ float group_vote(const SelectProblem& p, const float* votes, int splits,
                                            Range pool) {
  float group = 0.0f;
  for (int h = 0; h < p.group; ++h, votes += static_cast<int64_t>(splits) * p.T) {
    float pooled = 0.0f;
    for (int position = pool.begin; position < pool.end; ++position) {
      const float vote = head_vote(votes, splits, p.T, position);
      pooled = p.pool_max ? fmaxf(pooled, vote) : pooled + vote;
    }
    group = p.group_max ? fmaxf(group, pooled) : group + pooled;
  }
  return group;
}

// Shared histogram of a block: [kBins], to be cleared before and added to the head's own after.
__device__ __forceinline__ void clear_histogram(uint32_t* histogram) {
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) histogram[bin] = 0;
  __syncthreads();
}
__device__ __forceinline__ void add_histogram(uint32_t* out, const uint32_t* histogram) {
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
    if (histogram[bin]) atomicAdd(out + bin, histogram[bin]);
  }
}

// Grid: select tiles, KV heads; so for all that follow.
__global__ void __launch_bounds__(kThreads)
    pool_votes(SelectProblem p, SelectTensors tensors, int splits, Workspace workspace) {
  const Prompt prompt(p, tensors.prompt_length);
  const int first = blockIdx.x * kSelectTile, head = blockIdx.y;
  if (!prompt.eligible.overlaps(first, kSelectTile)) return;
  auto* histogram = reinterpret_cast<uint32_t*>(shared_memory());
  const float* votes = workspace.votes + static_cast<int64_t>(head) * p.group * splits * p.T;
  auto* staged = reinterpret_cast<float*>(histogram + kBins);
  const bool stages = can_stage(p.pool_kernel);
  clear_histogram(histogram);
  if (stages) group_votes(p, votes, splits, first, prompt.eligible, staged);
  for (int i = threadIdx.x; i < kSelectTile; i += kThreads) {
    const int position = first + i;
    if (!prompt.eligible.contains(position)) continue;
    const float vote = stages ? staged[staged_place(i)]
                              : group_vote(p, votes, splits,
                                           pool_range(position, p.pool_kernel, prompt.eligible));
    workspace.scores[static_cast<int64_t>(head) * p.T + position] = vote;
    atomicAdd(histogram + digit(sort_key(__float_as_uint(vote)), 0), 1u);
  }
  add_histogram(workspace.histograms + head * kLevels * kBins, histogram);
}

// One more digit of the threshold: the bin, counted from the highest, that has the last wanted
// vote. shared: [kWarps + 2].
__device__ __forceinline__ Threshold narrow(Threshold before, const uint32_t* histogram,
                                            int* shared) {
  constexpr int kPerThread = kBins / kThreads;
  const int highest = kBins - 1 - threadIdx.x * kPerThread;
  int own = 0;
  for (int i = 0; i < kPerThread; ++i) own += static_cast<int>(histogram[highest - i]);
  int above = block_sum(own, shared).before;
  for (int i = 0; i < kPerThread; ++i) {
    const int count = static_cast<int>(histogram[highest - i]);
    if (above < before.wanted && before.wanted <= above + count) {
      shared[kWarps] = highest - i;
      shared[kWarps + 1] = before.wanted - above;
    }
    above += count;
  }
  __syncthreads();
  return {extend(before.prefix, static_cast<uint32_t>(shared[kWarps])), shared[kWarps + 1]};
}

// The threshold at `level`, from the previous one and its histogram. The first block stores it.
__device__ __forceinline__ Threshold threshold_at(int level, int kept, int head,
                                                  Workspace workspace, int* shared) {
  Threshold* thresholds = workspace.thresholds + head * (kLevels + 1);
  const uint32_t* histogram = workspace.histograms + (head * kLevels + level - 1) * kBins;
  const Threshold before = level == 1 ? Threshold{0, kept} : thresholds[level - 1];
  const Threshold now = narrow(before, histogram, shared);
  if (blockIdx.x == 0 && threadIdx.x == 0) thresholds[level] = now;
  return now;
}

// Counts the digit at `level` (1, 2) of the votes that begin as the threshold does.
__global__ void __launch_bounds__(kThreads)
    refine(SelectProblem p, SelectTensors tensors, int level, Workspace workspace) {
  const Prompt prompt(p, tensors.prompt_length);
  const int first = blockIdx.x * kSelectTile, head = blockIdx.y;
  if (prompt.kept == 0) return;
  auto* histogram = reinterpret_cast<uint32_t*>(shared_memory());
  auto* scratch = reinterpret_cast<int*>(histogram + kBins);
  const Threshold threshold = threshold_at(level, prompt.kept, head, workspace, scratch);
  clear_histogram(histogram);
  for (int i = threadIdx.x; i < kSelectTile; i += kThreads) {
    if (!prompt.eligible.contains(first + i)) continue;
    const float vote = workspace.scores[static_cast<int64_t>(head) * p.T + first + i];
    const uint32_t key = sort_key(__float_as_uint(vote));
    if (prefix(key, level) == threshold.prefix) atomicAdd(histogram + digit(key, level), 1u);
  }
  add_histogram(workspace.histograms + (head * kLevels + level) * kBins, histogram);
}

// Counts a tile's votes above the complete threshold, and those equal to it.
__global__ void __launch_bounds__(kThreads)
    count_winners(SelectProblem p, SelectTensors tensors, Workspace workspace) {
  const Prompt prompt(p, tensors.prompt_length);
  const int first = blockIdx.x * kSelectTile, head = blockIdx.y;
  if (prompt.kept == 0) return;
  auto* scratch = reinterpret_cast<int*>(shared_memory());
  const Threshold threshold = threshold_at(kLevels, prompt.kept, head, workspace, scratch);
  TileCount own{0, 0};
  for (int i = threadIdx.x; i < kSelectTile; i += kThreads) {
    if (!prompt.eligible.contains(first + i)) continue;
    const float vote = workspace.scores[static_cast<int64_t>(head) * p.T + first + i];
    const uint32_t key = sort_key(__float_as_uint(vote));
    own.above += key > threshold.prefix;
    own.equal += key == threshold.prefix;
  }
  const int above = block_sum(own.above, scratch).total, equal = block_sum(own.equal, scratch).total;
  if (threadIdx.x == 0) workspace.counts[head * gridDim.x + blockIdx.x] = {above, equal};
}

// Winners of all the tiles before this one. shared: [kWarps].
__device__ __forceinline__ TileCount winners_before(const TileCount* counts, int* shared) {
  TileCount own{0, 0};
  for (int tile = threadIdx.x; tile < static_cast<int>(blockIdx.x); tile += kThreads) {
    own.above += counts[tile].above;
    own.equal += counts[tile].equal;
  }
  return {block_sum(own.above, shared).total, block_sum(own.equal, shared).total};
}

__global__ void __launch_bounds__(kThreads)
    write_positions(SelectProblem p, SelectTensors tensors, Workspace workspace) {
  const Prompt prompt(p, tensors.prompt_length);
  const int first = blockIdx.x * kSelectTile, head = blockIdx.y;
  int64_t* positions = tensors.positions + static_cast<int64_t>(head) * p.K;
  for (int slot = prompt.kept + blockIdx.x * kThreads + threadIdx.x; slot < p.K;
       slot += gridDim.x * kThreads) {
    positions[slot] = -1;
  }
  if (prompt.kept == 0) return;
  auto* scratch = reinterpret_cast<int*>(shared_memory());
  const Threshold threshold = workspace.thresholds[head * (kLevels + 1) + kLevels];
  TileCount before = winners_before(workspace.counts + head * gridDim.x, scratch);
  for (int i = threadIdx.x; i < kSelectTile; i += kThreads) {
    bool above = false, equal = false;
    if (prompt.eligible.contains(first + i)) {
      const float vote = workspace.scores[static_cast<int64_t>(head) * p.T + first + i];
      const uint32_t key = sort_key(__float_as_uint(vote));
      above = key > threshold.prefix;
      equal = key == threshold.prefix;
    }
    // Both counts in one sum: neither reaches 2^16 within a strip.
    const BlockSum sum = block_sum(above | equal << 16, scratch);
    const int ties = before.equal + (sum.before >> 16);
    if (above || (equal && ties < threshold.wanted)) {
      const int slot = before.above + (sum.before & 0xffff) + min_of(ties, threshold.wanted);
      positions[slot] = first + i;
    }
    before.above += sum.total & 0xffff;
    before.equal += sum.total >> 16;
  }
}

}  // namespace snapexport
