// The first of several requirements that is not met, as a sentence.
#pragma once

#include <string>

#include "kernels/problem.h"

namespace snapexport {

class Refusal {
 public:
  Refusal& require(bool met, const char* name, int64_t value, const char* rule) {
    if (!met && text_.empty()) text_ = std::string(name) + " is " + std::to_string(value) + ": " + rule;
    return *this;
  }
  std::string text() const { return text_; }

 private:
  std::string text_;
};

// Requirements of both operators on a cache. Rows are read 16 bytes at a time.
inline Refusal cache_refusal(int kv_heads, int T, int head_dim, int sink, int recent, int K,
                             ElementType type) {
  return Refusal()
      .require(type >= ElementType::kFloat32 && type <= ElementType::kBFloat16, "element type",
               static_cast<int>(type), "it must be float32, float16 or bfloat16")
      .require(kv_heads >= 1 && kv_heads <= 65535, "KV heads", kv_heads,
               "there must be 1 to 65535")
      .require(T >= 1 && T <= 1 << 25, "cache length", T, "it must be 1 to 33554432")
      .require(head_dim >= 8 && head_dim <= 256 && head_dim % 8 == 0, "head dimension", head_dim,
               "it must be a multiple of 8, at most 256")
      .require(sink >= 0 && sink <= T, "L_sink", sink, "it must be 0 to the cache's length")
      .require(recent >= 1 && recent <= T, "L_recent", recent,
               "it must be 1 to the cache's length")
      .require(K >= 0 && K <= T, "K", K, "it must be 0 to the cache's length");
}

}  // namespace snapexport
