// SnapKVSelect, second pass over the keys: each query head's votes for every eligible position.
#pragma once

#include "kernels/fragments.h"
#include "kernels/workspace.h"

namespace snapexport {

// Votes of one query head for 16 or 32 keys, summed over its tiles from shared column `column` on:
// [key tile][half], a lane's own columns only.
template <class Element, int kGroups>
__device__ __forceinline__ void head_votes(float (&votes)[Keys<kGroups>::kTiles * 2],
                                           const Keys<kGroups>& keys, const unsigned char* queries,
                                           const float* log_sums, int column, int tiles,
                                           Scoring scoring, bool squares, Lane lane) {
#pragma unroll
  for (float& vote : votes) vote = 0.0f;
  for (int tile = 0; tile < tiles; ++tile, column += kColumnTile) {
    float scores[Keys<kGroups>::kTiles][4];
    Product<Element, kGroups>::scores(scores, keys, queries + column * query_stride(kGroups),
                                      lane);
    bend(scores, scoring.limit);
    const float2 log_sum = *reinterpret_cast<const float2*>(log_sums + column + 2 * lane.t);
#pragma unroll
    for (int i = 0; i < Keys<kGroups>::kTiles * 4; ++i) {
      const float minus = i % 2 ? -log_sum.y : -log_sum.x;
      const float share = fast_exp2(fmaf(scores[i / 4][i % 4], scoring.scale, minus));
      votes[i / 2] = fmaf(share, squares ? share : 1.0f, votes[i / 2]);
    }
  }
}

// The four lanes of a key add up, and lane t writes the votes t, t + 4 of what they share.
template <int kCount>
__device__ __forceinline__ void store_votes(float* out, const float (&votes)[kCount], int first,
                                            Range eligible, Lane lane) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float vote = votes[i];
    vote += __shfl_xor_sync(~0u, vote, 1);
    vote += __shfl_xor_sync(~0u, vote, 2);
    const int position = first + i * 8 + lane.g;
    if (i % 4 == lane.t && eligible.contains(position)) out[position] = vote;
  }
}

// Grid: slices, key blocks, KV heads. Only eligible positions are written: causal or not, every row of the
// window attends to all of them, since the window is inside the ring.
template <class Element, int kGroups>
__global__ void __launch_bounds__(kThreads, kBlocksPerSM<kGroups>)
    window_votes(SelectProblem p, SelectTensors tensors, Slicing slicing, int vectors, Scoring scoring,
                 Workspace workspace) {
  const Prompt prompt(p, tensors.prompt_length);
  const Range eligible = prompt.eligible;
  // Backwards, since the keys that the first pass read last may still be in L2.
  const int head = gridDim.z - 1 - blockIdx.z;
  const int block_first = (gridDim.y - 1 - blockIdx.y) * kKeyBlock;
  if (prompt.kept == 0 || !eligible.overlaps(block_first, kKeyBlock)) return;

  const Slice slice = slicing.slice(blockIdx.x);
  const int columns = slice.padded_columns();
  const int64_t head_vectors = static_cast<int64_t>(vectors);
  unsigned char* queries = shared_memory();
  auto* log_sums = reinterpret_cast<float*>(queries + columns * query_stride(kGroups));
  load_queries<kGroups>(
      queries,
      static_cast<const uint4*>(tensors.query) + head_vectors * head * p.group * p.window, vectors,
      slice, p.window);
  for (int column = threadIdx.x; column < slice.columns(); column += kThreads) {
    log_sums[column] = workspace.log_sums[head * slicing.columns() +
                                          slice.head(column) * slicing.head_tiles * kColumnTile +
                                          slice.row(column)];
  }
  __syncthreads();

  const Lane lane;
  const auto* key = static_cast<const uint4*>(tensors.key) + head_vectors * head * p.T;
  Keys<kGroups> keys;
  for (int i = threadIdx.x / 32 * keys.kCount; i < kKeyBlock; i += kWarps * keys.kCount) {
    const int first = block_first + i;
    if (!eligible.overlaps(first, keys.kCount)) continue;
    load(keys, key, vectors, first, eligible.end, lane);
    for (int h = 0; h < slice.heads; ++h) {
      float votes[Keys<kGroups>::kTiles * 2];
      head_votes<Element, kGroups>(votes, keys, queries, log_sums,
                                   h * slice.tiles * kColumnTile, slice.tiles, scoring, p.squares,
                                   lane);
      const int64_t row = (static_cast<int64_t>(head) * p.group + slice.first_head + h) *
                              slicing.splits +
                          slicing.split(blockIdx.x);
      store_votes(workspace.votes + row * p.T, votes, first, eligible, lane);
    }
  }
}

}  // namespace snapexport
