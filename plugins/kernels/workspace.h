// Workspace that the kernels of SnapKVSelect share, and the split of a launch into blocks.
#pragma once

#include "kernels/geometry.h"
#include "kernels/problem.h"

namespace snapexport {

constexpr int kKeyBlock = 1024;  // keys of one block of row_statistics and of window_votes

// Maximum and sum of a row's attention so far: sum of 2^(score - peak), scores in base 2.
struct RowStatistic {
  float peak, sum;
};

// The known leading digits of the K-th highest vote, and the number of winners among the votes that
// begin with them. All votes that begin higher win.
struct Threshold {
  uint32_t prefix;
  int32_t wanted;
};

// Votes of a tile above the threshold, and equal to it.
struct TileCount {
  int32_t above, equal;
};

// Pieces of one allocation. None has T elements for each query: statistics are per 1,024 keys, votes
// per query head.
struct Workspace {
  RowStatistic* statistics;  // [kv_heads, key blocks, columns]
  float* log_sums;           // [kv_heads, columns]: log2 of the softmax's denominator
  float* votes;              // [kv_heads, group, splits, T]
  float* scores;             // [kv_heads, T]: after pool and group
  uint32_t* histograms;      // [kv_heads, kLevels, kBins]
  Threshold* thresholds;     // [kv_heads, kLevels + 1]
  TileCount* counts;         // [kv_heads, select tiles]
};

// From a product of query and key to a score in base 2: scale * limit * tanh(product / limit), or
// scale * product where limit is 0. limit is the softcap before the scale.
struct Scoring {
  float scale, limit;
};

inline int key_blocks(const SelectProblem& p) { return ceil_div(p.T, kKeyBlock); }
inline int select_tiles(const SelectProblem& p) { return ceil_div(p.T, kSelectTile); }

// The length of the prompt, its eligible positions, and how many of them are kept.
struct Prompt {
  int length, kept;
  Range eligible;
  SNAPEXPORT_BOTH Prompt(const SelectProblem& p, const int64_t* prompt_length)
      : length(clamp_length(*prompt_length, p.T)),
        eligible(snapexport::eligible(p.sink, p.recent, p.K, length)) {
    kept = min_of(eligible.size(), p.K);
  }
};

}  // namespace snapexport
