#include "launchers/select.h"

#include <type_traits>

#include "kernels/radix_select.h"
#include "kernels/row_statistics.h"
#include "kernels/window_votes.h"
#include "launchers/refusal.h"

namespace snapexport {
namespace {

constexpr double kLog2E = 1.4426950408889634;

// 16-byte pieces of a row of queries or keys, and the number of 64-byte groups that kernels are
// compiled for: the next power of two.
int row_vectors(const SelectProblem& p, ElementType type) {
  return p.head_dim * element_bytes(type) / 16;
}

int row_groups(const SelectProblem& p, ElementType type) {
  int groups = 1;
  while (groups * 4 < row_vectors(p, type)) groups *= 2;
  return groups;
}

Slicing slicing_of(const SelectProblem& p, ElementType type) {
  return Slicing(p.group, p.window, columns_that_fit(row_groups(p, type)));
}

// Divides one allocation into pieces; with a null pointer it only measures.
struct Allocation {
  unsigned char* memory;
  size_t used = 0;
  template <class T>
  T* take(size_t count) {
    T* piece = reinterpret_cast<T*>(memory + used);
    used += (count * sizeof(T) + 255) / 256 * 256;
    return piece;
  }
};

Workspace lay_out(const SelectProblem& p, const Slicing& slicing, Allocation& all) {
  const size_t heads = p.kv_heads, columns = slicing.columns(), T = p.T;
  Workspace w;
  w.statistics = all.take<RowStatistic>(heads * key_blocks(p) * columns);
  w.log_sums = all.take<float>(heads * columns);
  w.votes = all.take<float>(heads * p.group * slicing.splits * T);
  w.scores = all.take<float>(heads * T);
  w.histograms = all.take<uint32_t>(heads * kLevels * kBins);
  w.thresholds = all.take<Threshold>(heads * (kLevels + 1));
  w.counts = all.take<TileCount>(heads * select_tiles(p));
  return w;
}

// Two passes over the keys, for one element type and row size.
template <class Element, int kGroups>
void vote(const SelectProblem& p, const SelectTensors& tensors, const Slicing& slicing, int vectors,
          const Workspace& w, cudaStream_t stream) {
  const Scoring scoring{static_cast<float>(p.scale * kLog2E), p.softcap / p.scale};
  const int fit = columns_that_fit(kGroups), blocks = key_blocks(p), columns = slicing.columns();
  const int most = min_of(fit, round_up(slicing.slice(0).columns(), kColumnTile * kQuad));
  const int queries = most * query_stride(kGroups), sums = most * static_cast<int>(sizeof(float));
  const dim3 passes(slicing.count(), blocks, p.kv_heads);
  launch(row_statistics<Element, kGroups>, passes, kThreads, queries + 2 * kWarps * sums, stream, p,
         tensors, slicing, vectors, scoring, w);
  launch(row_totals, dim3(ceil_div(columns, 32), p.kv_heads), kThreads,
         kThreads * static_cast<int>(sizeof(RowStatistic)), stream, p, tensors, slicing, blocks, w);
  launch(window_votes<Element, kGroups>, passes, kThreads, queries + sums, stream, p, tensors,
         slicing, vectors, scoring, w);
}

template <class Element>
void vote_by_groups(int groups, const SelectProblem& p, const SelectTensors& tensors,
                    const Slicing& slicing, int vectors, const Workspace& w, cudaStream_t stream) {
  const auto with = [&](auto run) { run(p, tensors, slicing, vectors, w, stream); };
  switch (groups) {
    case 1: return with(vote<Element, 1>);
    case 2: return with(vote<Element, 2>);
    case 4: return with(vote<Element, 4>);
    case 8: return with(vote<Element, 8>);
    default: break;
  }
  // Rows of 1,024 bytes: only fp32 has them.
  if constexpr (std::is_same_v<Element, float>) with(vote<Element, 16>);
}

// From votes to positions.
void choose(const SelectProblem& p, const SelectTensors& tensors, int splits, const Workspace& w,
            cudaStream_t stream) {
  constexpr int kWord = sizeof(uint32_t), kScratch = (kWarps + 2) * kWord;
  const dim3 tiles(select_tiles(p), p.kv_heads);
  const int staged = can_stage(p.pool_kernel) ? staged_bytes(p.pool_kernel) : 0;
  launch(pool_votes, tiles, kThreads, kBins * kWord + staged, stream, p, tensors, splits, w);
  for (int level = 1; level < kLevels; ++level) {
    launch(refine, tiles, kThreads, kBins * kWord + kScratch, stream, p, tensors, level, w);
  }
  launch(count_winners, tiles, kThreads, kScratch, stream, p, tensors, w);
  launch(write_positions, tiles, kThreads, kScratch, stream, p, tensors, w);
}

}  // namespace

std::string refusal(const SelectProblem& p, ElementType type) {
  return cache_refusal(p.kv_heads, p.T, p.head_dim, p.sink, p.recent, p.K, type)
      .require(p.group >= 1 && p.group <= 4096, "query heads of a KV head", p.group,
               "there must be 1 to 4096")
      .require(p.window >= 1 && p.window <= p.recent, "L_obs", p.window,
               "the observation window must lie inside the ring (1 to L_recent)")
      .require(p.K >= 1, "K", p.K, "nothing is selected: leave the operator out")
      .require(p.pool_kernel >= 1, "pool_kernel", p.pool_kernel, "it must be 1 or more")
      .require(p.scale > 0, "scale", static_cast<int64_t>(p.scale), "it must be above 0")
      .require(p.softcap >= 0, "softcap", static_cast<int64_t>(p.softcap), "it must be 0 or more")
      .text();
}

size_t workspace_bytes(const SelectProblem& p, ElementType type) {
  Allocation all{nullptr};
  lay_out(p, slicing_of(p, type), all);
  return all.used;
}

int select(const SelectProblem& p, ElementType type, const SelectTensors& tensors, void* workspace,
           CUstream_st* stream) {
  const Slicing slicing = slicing_of(p, type);
  Allocation all{static_cast<unsigned char*>(workspace)};
  const Workspace w = lay_out(p, slicing, all);
  const int groups = row_groups(p, type), vectors = row_vectors(p, type);
  const size_t histogram_bytes = sizeof(uint32_t) * p.kv_heads * kLevels * kBins;
  const cudaError_t cleared = cudaMemsetAsync(w.histograms, 0, histogram_bytes, stream);
  if (cleared != cudaSuccess) return cleared;
  const auto with = [&](auto run) { run(groups, p, tensors, slicing, vectors, w, stream); };
  switch (type) {
    case ElementType::kFloat32: with(vote_by_groups<float>); break;
    case ElementType::kFloat16: with(vote_by_groups<Float16>); break;
    case ElementType::kBFloat16: with(vote_by_groups<BFloat16>); break;
  }
  choose(p, tensors, slicing.splits, w, stream);
  return cudaGetLastError();
}

}  // namespace snapexport
