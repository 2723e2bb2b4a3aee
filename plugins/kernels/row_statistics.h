// SnapKVSelect, first pass over the keys: each query's softmax denominator.
//
// A block reads 1,024 keys of a KV head once and keeps, per warp, a running maximum and sum of each
// column; row_totals combines the blocks. All orders of addition are fixed.
#pragma once

#include "kernels/fragments.h"
#include "kernels/workspace.h"

namespace snapexport {

// Below every score, and finite, so that a difference of two is not NaN.
constexpr float kLowest = -1e30f;

__device__ __forceinline__ RowStatistic merge(RowStatistic a, RowStatistic b) {
  const float peak = fmaxf(a.peak, b.peak);
  return {peak, a.sum * fast_exp2(a.peak - peak) + b.sum * fast_exp2(b.peak - peak)};
}

// The window rows of a lane's scores in a quad, and the keys that they attend to.
struct QuadMask {
  const SelectProblem& p;
  const Prompt& prompt;
  Slice slice;
  int quad;
  __device__ bool allows(int tile, int parity, int position, Lane lane) const {
    const int row = slice.row((quad * kQuad + tile) * kColumnTile + 2 * lane.t + parity);
    return attended(p.causal, prompt.eligible, prompt.length, p.window, row).contains(position);
  }
};

// Takes 16 or 32 keys into a quad's statistics. peak, sum: of this warp, [padded columns].
template <class Element, int kGroups>
__device__ __forceinline__ void add_keys(const Keys<kGroups>& keys, const unsigned char* queries,
                                         Scoring scoring, bool whole, const QuadMask& mask, int first,
                                         float* peak, float* sum, Lane lane) {
  constexpr int kTiles = Keys<kGroups>::kTiles;
  const int quad_column = mask.quad * kQuad * kColumnTile;
  float scores[kQuad][kTiles][4];
  float values[kQuad * 2];
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    const int column = quad_column + j * kColumnTile;
    Product<Element, kGroups>::scores(scores[j], keys, queries + column * query_stride(kGroups),
                                      lane);
    bend(scores[j], scoring.limit);
    values[2 * j] = values[2 * j + 1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      float& score = scores[j][i / 4][i % 4];
      const int position = first + i / 2 * 8 + lane.g;
      if (!whole && !mask.allows(j, i % 2, position, lane)) score = -INFINITY;
      values[2 * j + i % 2] = fmaxf(values[2 * j + i % 2], score);
    }
  }
  fold<8>(values, 16, lane, Max{});
  fold<4>(values, 8, lane, Max{});
  fold<2>(values, 4, lane, Max{});

  // Lane g now holds parity g % 2 of tile g / 2.
  const int own = quad_column + lane.g / 2 * kColumnTile + 2 * lane.t + lane.g % 2;
  const float before = peak[own], now = fmaxf(before, values[0] * scoring.scale);
  peak[own] = now;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    const int column = quad_column + j * kColumnTile + 2 * lane.t;
    const float2 reference = *reinterpret_cast<const float2*>(peak + column);
    values[2 * j] = values[2 * j + 1] = 0.0f;
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      const float minus = i % 2 ? -reference.y : -reference.x;
      values[2 * j + i % 2] += fast_exp2(fmaf(scores[j][i / 4][i % 4], scoring.scale, minus));
    }
  }
  fold<8>(values, 16, lane, Add{});
  fold<4>(values, 8, lane, Add{});
  fold<2>(values, 4, lane, Add{});
  sum[own] = sum[own] * fast_exp2(before - now) + values[0];
  __syncwarp();
}

// Grid: slices, key blocks, KV heads. Blocks beyond the attended keys write nothing.
template <class Element, int kGroups>
__global__ void __launch_bounds__(kThreads, kBlocksPerSM<kGroups>)
    row_statistics(SelectProblem p, SelectTensors tensors, Slicing slicing, int vectors,
                   Scoring scoring, Workspace workspace) {
  const Prompt prompt(p, tensors.prompt_length);
  const Slice slice = slicing.slice(blockIdx.x);
  const Range widest =
      attended(p.causal, prompt.eligible, prompt.length, p.window, p.window - 1);
  const Range narrowest = attended(p.causal, prompt.eligible, prompt.length, p.window, 0);
  const int head = blockIdx.z, block_first = blockIdx.y * kKeyBlock;
  if (prompt.kept == 0 || !widest.overlaps(block_first, kKeyBlock)) return;

  const int columns = slice.padded_columns(), warp = threadIdx.x / 32;
  unsigned char* queries = shared_memory();
  auto* peaks = reinterpret_cast<float*>(queries + columns * query_stride(kGroups));
  float* sums = peaks + kWarps * columns;
  const int64_t head_vectors = static_cast<int64_t>(vectors);
  load_queries<kGroups>(
      queries,
      static_cast<const uint4*>(tensors.query) + head_vectors * head * p.group * p.window, vectors,
      slice, p.window);
  for (int i = threadIdx.x; i < kWarps * columns; i += kThreads) {
    peaks[i] = kLowest;
    sums[i] = 0.0f;
  }
  __syncthreads();

  const Lane lane;
  const auto* key = static_cast<const uint4*>(tensors.key) + head_vectors * head * p.T;
  Keys<kGroups> keys;
  for (int i = warp * keys.kCount; i < kKeyBlock; i += kWarps * keys.kCount) {
    const int first = block_first + i;
    if (!widest.overlaps(first, keys.kCount)) continue;
    load(keys, key, vectors, first, widest.end, lane);
    const bool whole = narrowest.covers(first, keys.kCount);
    for (int quad = 0; quad < columns / (kQuad * kColumnTile); ++quad) {
      add_keys<Element, kGroups>(keys, queries, scoring, whole, {p, prompt, slice, quad}, first,
                                 peaks + warp * columns, sums + warp * columns, lane);
    }
  }
  __syncthreads();

  RowStatistic* out = workspace.statistics +
                      (static_cast<int64_t>(head) * gridDim.y + blockIdx.y) * slicing.columns();
  for (int column = threadIdx.x; column < slice.columns(); column += kThreads) {
    RowStatistic total{kLowest, 0.0f};
    for (int w = 0; w < kWarps; ++w) {
      total = merge(total, {peaks[w * columns + column], sums[w * columns + column]});
    }
    out[slice.head(column) * slicing.head_tiles * kColumnTile + slice.row(column)] = total;
  }
}

// Grid: groups of 32 columns, KV heads. A column is a lane; warps take key blocks in turn.
__global__ void __launch_bounds__(kThreads)
    row_totals(SelectProblem p, SelectTensors tensors, Slicing slicing, int blocks,
               Workspace workspace) {
  const Prompt prompt(p, tensors.prompt_length);
  const Range widest =
      attended(p.causal, prompt.eligible, prompt.length, p.window, p.window - 1);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
  const int column = blockIdx.x * 32 + lane, columns = slicing.columns();
  auto* partial = reinterpret_cast<RowStatistic*>(shared_memory());
  RowStatistic total{kLowest, 0.0f};
  if (prompt.kept > 0 && column < columns) {
    const int first = widest.begin / kKeyBlock, end = ceil_div(widest.end, kKeyBlock);
    const RowStatistic* in = workspace.statistics + static_cast<int64_t>(head) * blocks * columns;
    for (int block = first + warp; block < end; block += kWarps) {
      total = merge(total, in[static_cast<int64_t>(block) * columns + column]);
    }
  }
  partial[threadIdx.x] = total;
  __syncthreads();
  if (warp > 0 || column >= columns) return;
  for (int w = 1; w < kWarps; ++w) total = merge(total, partial[w * 32 + lane]);
  // A padding row gets an infinite denominator, and so no vote.
  const bool is_row = column % (slicing.head_tiles * kColumnTile) < p.window;
  workspace.log_sums[head * columns + column] =
      is_row ? total.peak + log2f(total.sum) : INFINITY;
}

}  // namespace snapexport
