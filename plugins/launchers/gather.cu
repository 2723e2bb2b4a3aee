#include "launchers/gather.h"

#include "kernels/gather.h"
#include "launchers/refusal.h"

namespace snapexport {

std::string refusal(const GatherProblem& p, ElementType type) {
  return cache_refusal(p.kv_heads, p.T, p.head_dim, p.sink, p.recent, p.K, type)
      .require(p.spare >= 0 && p.spare <= p.T, "spare", p.spare,
               "it must be 0 to the cache's length")
      .text();
}

int gather(const GatherProblem& p, ElementType type, const GatherTensors& tensors,
           CUstream_st* stream) {
  const int vectors = p.head_dim * element_bytes(type) / 16;
  const int64_t pieces = static_cast<int64_t>(cache_slots(p)) * vectors;
  const dim3 grid(static_cast<unsigned>((pieces + kThreads - 1) / kThreads), p.kv_heads);
  launch(gather_rows, grid, kThreads, 0, stream, p, tensors, vectors);
  return cudaGetLastError();
}

}  // namespace snapexport
