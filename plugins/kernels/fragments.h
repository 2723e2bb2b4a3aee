// Products of queries and keys, a warp at a time: 8 query columns against 16 or 32 keys.
//
// A lane (g = lane / 4, t = lane % 4) holds 16 bytes of every 64 of rows g and g + 8 of each 16 keys,
// read from global memory by 128-bit loads; queries are read likewise from shared memory. The order
// of head dimensions does not change a dot product, so these bytes are tensor-core fragments as they
// are. Scores have the layout of mma.m16n8's accumulator: for key tile m, scores[m][0..1] are key g,
// columns 2t and 2t + 1, and scores[m][2..3] are key g + 8.
#pragma once

#include "kernels/device.h"
#include "kernels/geometry.h"

namespace snapexport {

struct Float16 {};
struct BFloat16 {};

struct Lane {
  int index = static_cast<int>(threadIdx.x) % 32, g = index / 4, t = index % 4;
};

// Rows of at most groups * 64 bytes. Keys per warp are bounded by registers.
template <int kGroups>
struct Keys {
  static constexpr int kTiles = kGroups <= 4 ? 2 : 1;
  static constexpr int kCount = kTiles * 16;
  uint4 rows[kTiles][2][kGroups];
};

// Two blocks to a multiprocessor leave a thread 128 registers; rows of 1,024 bytes need more.
template <int kGroups>
constexpr int kBlocksPerSM = kGroups <= 8 ? 2 : 1;

// Keys first .. first + kCount, those from `end` on zero. vectors: 16-byte pieces of a row.
template <int kGroups>
__device__ __forceinline__ void load(Keys<kGroups>& keys, const uint4* key, int vectors, int first,
                                     int end, Lane lane) {
#pragma unroll
  for (int row = 0; row < 2 * Keys<kGroups>::kTiles; ++row) {
    const int position = first + row * 8 + lane.g;
    const uint4* source = key + static_cast<int64_t>(position) * vectors;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int vector = group * 4 + lane.t;
      const bool inside = position < end && vector < vectors;
      keys.rows[row / 2][row % 2][group] = inside ? __ldg(source + vector) : uint4{0, 0, 0, 0};
    }
  }
}

// One step of a reduction over lanes: each lane swaps half of its values with the lane `stride` away
// and combines the other half, so that it holds half as many values.
template <int kCount, class Combine>
__device__ __forceinline__ void fold(float* values, int stride, Lane lane, Combine combine) {
  const bool upper = lane.index & stride;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float keep = upper ? values[i + kCount / 2] : values[i];
    const float send = upper ? values[i] : values[i + kCount / 2];
    values[i] = combine(keep, __shfl_xor_sync(~0u, send, stride));
  }
}

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

__device__ __forceinline__ void mma(Float16, float (&c)[4], const uint32_t (&a)[4],
                                    const uint32_t (&b)[2]) {
  mma_float16(c, a, b);
}
__device__ __forceinline__ void mma(BFloat16, float (&c)[4], const uint32_t (&a)[4],
                                    const uint32_t (&b)[2]) {
  mma_bfloat16(c, a, b);
}

// Scores of the 8 queries at `query`, `stride` bytes apart: 16-bit elements, by tensor cores.
template <class Element, int kGroups>
struct Product {
  static __device__ __forceinline__ void scores(float (&scores)[Keys<kGroups>::kTiles][4],
                                                const Keys<kGroups>& keys,
                                                const unsigned char* query, Lane lane) {
    const auto* column =
        reinterpret_cast<const uint4*>(query + lane.g * query_stride(kGroups)) + lane.t;
#pragma unroll
    for (auto& tile : scores) {
      for (float& score : tile) score = 0.0f;
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const uint4 q = column[group * 4];
#pragma unroll
      for (int tile = 0; tile < Keys<kGroups>::kTiles; ++tile) {
        const uint4 k = keys.rows[tile][0][group], k8 = keys.rows[tile][1][group];
        mma(Element{}, scores[tile], {k.x, k8.x, k.y, k8.y}, {q.x, q.y});
        mma(Element{}, scores[tile], {k.z, k8.z, k.w, k8.w}, {q.z, q.w});
      }
    }
  }
};

__device__ __forceinline__ float dot(uint4 a, uint4 b, float sum) {
  sum = fmaf(__uint_as_float(a.x), __uint_as_float(b.x), sum);
  sum = fmaf(__uint_as_float(a.y), __uint_as_float(b.y), sum);
  sum = fmaf(__uint_as_float(a.z), __uint_as_float(b.z), sum);
  return fmaf(__uint_as_float(a.w), __uint_as_float(b.w), sum);
}

// fp32: full fp32 products, which tensor cores do not have. A lane sums its own head dimensions for
// all 8 columns; then each of the lanes t = 0..3 gets 2 columns.
template <int kGroups>
struct Product<float, kGroups> {
  static __device__ __forceinline__ void scores(float (&scores)[Keys<kGroups>::kTiles][4],
                                                const Keys<kGroups>& keys,
                                                const unsigned char* query, Lane lane) {
    constexpr int kRows = 2 * Keys<kGroups>::kTiles;
    float sums[kRows][kColumnTile];
#pragma unroll
    for (int c = 0; c < kColumnTile; ++c) {
      const auto* column = reinterpret_cast<const uint4*>(query + c * query_stride(kGroups));
#pragma unroll
      for (int row = 0; row < kRows; ++row) sums[row][c] = 0.0f;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const uint4 q = column[group * 4 + lane.t];
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          sums[row][c] = dot(keys.rows[row / 2][row % 2][group], q, sums[row][c]);
        }
      }
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      fold<8>(sums[row], 2, lane, Add{});
      fold<4>(sums[row], 1, lane, Add{});
      scores[row / 2][row % 2 * 2] = sums[row][0];
      scores[row / 2][row % 2 * 2 + 1] = sums[row][1];
    }
  }
};

// Products under a softcap (Gemma 2).
template <int kTiles>
__device__ __forceinline__ void bend(float (&products)[kTiles][4], float limit) {
  if (limit == 0.0f) return;
#pragma unroll
  for (auto& tile : products) {
    for (float& product : tile) product = limit * tanhf(product / limit);
  }
}

// Copies a slice's queries to shared memory, padding rows as zeros. The caller has to synchronize.
template <int kGroups>
__device__ __forceinline__ void load_queries(unsigned char* shared, const uint4* query, int vectors,
                                             Slice slice, int window) {
  for (int i = threadIdx.x; i < slice.padded_columns() * kGroups * 4; i += kThreads) {
    const int column = i / (kGroups * 4), vector = i % (kGroups * 4), row = slice.row(column);
    const bool inside = column < slice.columns() && row < window && vector < vectors;
    const int64_t source = static_cast<int64_t>(slice.head(column)) * window + row;
    reinterpret_cast<uint4*>(shared + column * query_stride(kGroups))[vector] =
        inside ? __ldg(query + source * vectors + vector) : uint4{0, 0, 0, 0};
  }
}

}  // namespace snapexport
