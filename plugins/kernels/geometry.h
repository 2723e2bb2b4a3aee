// Index arithmetic of the cache and of the kernels' tiles, the same on host and device.
//
// Positions are 0-based; s = sink, R = recent, T = rows of a cache, L = prompt length, S = s + R + K,
// G = query heads of a KV head, W = rows of the observation window. Knows no memory and no threads.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define SNAPEXPORT_BOTH __host__ __device__ inline
#else
#define SNAPEXPORT_BOTH inline
#endif

namespace snapexport {

SNAPEXPORT_BOTH int ceil_div(int a, int b) { return (a + b - 1) / b; }
SNAPEXPORT_BOTH int round_up(int a, int b) { return ceil_div(a, b) * b; }
SNAPEXPORT_BOTH int min_of(int a, int b) { return a < b ? a : b; }
SNAPEXPORT_BOTH int max_of(int a, int b) { return a > b ? a : b; }

// Remainder with the divisor's sign, as ONNX's Mod of integers.
SNAPEXPORT_BOTH int floor_mod(int a, int b) { return (a % b + b) % b; }

// The prompt's length clamped to [0, T], so that no value in memory makes a kernel leave the cache.
SNAPEXPORT_BOTH int clamp_length(int64_t length, int T) {
  return length < 0 ? 0 : length > T ? T : static_cast<int>(length);
}

// Half-open.
struct Range {
  int begin, end;
  SNAPEXPORT_BOTH bool empty() const { return end <= begin; }
  SNAPEXPORT_BOTH int size() const { return empty() ? 0 : end - begin; }
  SNAPEXPORT_BOTH bool contains(int position) const { return begin <= position && position < end; }
  SNAPEXPORT_BOTH bool overlaps(int first, int count) const {
    return !empty() && first < end && begin < first + count;
  }
  SNAPEXPORT_BOTH bool covers(int first, int count) const {
    return begin <= first && first + count <= end;
  }
};

// Whether the cache slots hold the prompt: then each position is in the slot of its number.
SNAPEXPORT_BOTH bool is_whole(int sink, int recent, int K, int length) {
  return length <= sink + recent + K;
}

// The eligible positions: neither sinks nor ring hold them.
SNAPEXPORT_BOTH Range eligible(int sink, int recent, int K, int length) {
  return {sink, is_whole(sink, recent, K, length) ? sink : length - recent};
}

// The keys that row `row` of the window distributes its attention over.
SNAPEXPORT_BOTH Range attended(bool causal, Range eligible, int length, int window, int row) {
  return causal ? Range{0, length - window + row + 1} : eligible;
}

// The position in a sink or ring slot of a prompt that is not held whole, -1 if the slot is empty.
SNAPEXPORT_BOTH int window_position(int slot, int sink, int ring, int length) {
  if (slot < sink) return slot;
  const int newest = length - 1, latest = newest - floor_mod(newest - slot, ring);
  return latest >= sink ? latest : -1;
}

// The positions of a pool around `position`: SAME_UPPER, cut to the eligible positions.
SNAPEXPORT_BOTH Range pool_range(int position, int width, Range eligible) {
  const int begin = position - (width - 1) / 2;
  return {max_of(begin, eligible.begin), min_of(begin + width, eligible.end)};
}

// --- Columns of scores: the window's rows of a KV head's G query heads, in tiles of 8 ---

constexpr int kColumnTile = 8;    // columns of one tensor-core product
constexpr int kQuad = 4;          // tiles that row_statistics reduces together
constexpr int kThreads = 256;     // of every block
constexpr int kWarps = kThreads / 32;
constexpr int kSharedBytes = 48 * 1024;  // what every GPU gives a block unasked

// Bytes between two queries in shared memory: 64 modulo 128, so that eight lanes which read 64 bytes
// of two neighbouring rows meet no bank twice. groups: 64-byte pieces of a row.
SNAPEXPORT_BOTH int query_stride(int groups) { return (groups | 1) * 64; }

// Columns that fit into shared memory beside the running maximum and sum of each warp.
SNAPEXPORT_BOTH int columns_that_fit(int groups) {
  const int bytes = query_stride(groups) + kWarps * 2 * static_cast<int>(sizeof(float));
  return kSharedBytes / bytes / (kColumnTile * kQuad) * (kColumnTile * kQuad);
}

// One block's columns: `tiles` tiles from `first_tile`, of each of `heads` heads from `first_head`.
struct Slice {
  int first_head, heads, first_tile, tiles;
  SNAPEXPORT_BOTH int columns() const { return heads * tiles * kColumnTile; }
  SNAPEXPORT_BOTH int padded_columns() const { return round_up(columns(), kColumnTile * kQuad); }
  SNAPEXPORT_BOTH int head(int column) const { return first_head + column / (tiles * kColumnTile); }
  SNAPEXPORT_BOTH int row(int column) const {
    return first_tile * kColumnTile + column % (tiles * kColumnTile);
  }
};

// The split of a KV head's columns into slices, one for each block: several query heads in a slice,
// or several slices (`splits`) for a head that is too large for shared memory.
struct Slicing {
  int group, head_tiles, heads, splits, split_tiles;

  SNAPEXPORT_BOTH Slicing(int group_, int window, int fit)
      : group(group_), head_tiles(ceil_div(window, kColumnTile)) {
    const int tiles = fit / kColumnTile;
    heads = max_of(1, tiles / head_tiles);
    splits = ceil_div(head_tiles, tiles);
    split_tiles = ceil_div(head_tiles, splits);
  }
  SNAPEXPORT_BOTH int count() const { return ceil_div(group, heads) * splits; }
  SNAPEXPORT_BOTH int columns() const { return group * head_tiles * kColumnTile; }
  SNAPEXPORT_BOTH int split(int index) const { return index % splits; }
  SNAPEXPORT_BOTH Slice slice(int index) const {
    const int first_head = index / splits * heads;
    const int first_tile = split(index) * split_tiles;
    return {first_head, min_of(heads, group - first_head), first_tile,
            min_of(split_tiles, head_tiles - first_tile)};
  }
};

// --- Radix select: a vote's bits, most significant digit first ---

constexpr int kLevels = 3;
constexpr int kDigitBits = 10;  // 31 bits: the first digit has one more
constexpr int kBins = 2048;
constexpr int kSelectTile = 2048;  // positions of one block

// A block pools its positions from shared memory, which holds its own votes and those around them
// that its pools reach. Each thread pools a run of neighbours.
constexpr int kRun = kSelectTile / kThreads;
SNAPEXPORT_BOTH int staged_votes(int width) { return kSelectTile + width - 1; }
// Skips a place after each run, so that 32 threads read the same vote of their runs from 32 banks.
SNAPEXPORT_BOTH int staged_place(int i) { return i + i / kRun; }
SNAPEXPORT_BOTH int staged_bytes(int width) {
  return (staged_place(staged_votes(width) - 1) + 1) * static_cast<int>(sizeof(float));
}
// Whether they fit beside the counts of digits; no sum of theirs overflows before the width is compared.
SNAPEXPORT_BOTH bool can_stage(int width) {
  return width <= kSharedBytes && staged_bytes(width) + kBins * 4 <= kSharedBytes;
}

// Votes are never negative, so their bits rank as the votes do. The sign of a zero is dropped.
SNAPEXPORT_BOTH uint32_t sort_key(uint32_t bits) { return bits & 0x7fffffffu; }

// Everything above the digits from `level` on; all of it at kLevels.
SNAPEXPORT_BOTH uint32_t prefix(uint32_t key, int level) {
  return level == 0 ? 0 : key >> (kDigitBits * (kLevels - level));
}

SNAPEXPORT_BOTH uint32_t digit(uint32_t key, int level) {
  const uint32_t shifted = key >> (kDigitBits * (kLevels - 1 - level));
  return level == 0 ? shifted : shifted & ((1u << kDigitBits) - 1);
}

SNAPEXPORT_BOTH uint32_t extend(uint32_t prefix, uint32_t digit) {
  return prefix << kDigitBits | digit;
}

}  // namespace snapexport
