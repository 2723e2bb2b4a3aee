// Inputs of the two operators: plain data that launchers fill and kernels read.
#pragma once

#include <cstdint>

namespace snapexport {

enum class ElementType : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

constexpr int element_bytes(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

// SnapKVSelect: shapes and attributes, named as in the ONNX function.
struct SelectProblem {
  int32_t kv_heads, group, window, T, head_dim;
  int32_t sink, recent, K, pool_kernel;
  float scale, softcap;  // softcap 0: none
  bool causal, squares, pool_max, group_max;  // against candidates (eligible positions), sum, avg, mean (or sum)
};

// Device memory. query [kv_heads * group, window, head_dim], key [kv_heads, T, head_dim].
struct SelectTensors {
  const void* query;
  const void* key;
  const int64_t* prompt_length;  // [1]
  int64_t* positions;            // out: [kv_heads, K]
};

// SnapStreamGather. spare: ring slots beyond `recent`.
struct GatherProblem {
  int32_t kv_heads, T, head_dim, sink, recent, K, spare;
};

// Device memory. key, value [kv_heads, T, head_dim]; present_* [kv_heads, cache slots, head_dim].
struct GatherTensors {
  const void* key;
  const void* value;
  const int64_t* prompt_length;  // [1]
  const int64_t* positions;      // [kv_heads, K]
  void* present_key;
  void* present_value;
};

}  // namespace snapexport
