// SnapKVSelect as a TensorRT plugin.
//
// query_window [1,H,W,D], key [1,Hkv,T,D], prompt_length int64 [1] -> topk_positions int64 [1,Hkv,K]
#pragma once

#include <array>

#include "tensorrt/plugin.h"

namespace snapexport {

struct SelectAttributes {
  explicit SelectAttributes(const nvinfer1::PluginFieldCollection* fields);

  int32_t sink, recent, K;
  std::array<int32_t, 2> pool_kernel;  // [1, P]
  float scale, softcap;
  std::string softmax, vote, pool, group;
};

class SelectPlugin final : public Plugin {
 public:
  static constexpr Signature kSignature{"SnapKVSelect", 3, 1, 0b1100};
  using Attributes = SelectAttributes;

  explicit SelectPlugin(const SelectAttributes& attributes)
      : Plugin(kSignature), attributes_(attributes) {}

  nvinfer1::IPluginV3* clone() noexcept override;
  int32_t getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count,
                          const nvinfer1::DimsExprs*, int32_t, nvinfer1::DimsExprs* outputs,
                          int32_t output_count,
                          nvinfer1::IExprBuilder& expressions) noexcept override;
  size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* in, int32_t inputs,
                          const nvinfer1::DynamicPluginTensorDesc*,
                          int32_t) const noexcept override;
  int32_t enqueue(const nvinfer1::PluginTensorDesc* in, const nvinfer1::PluginTensorDesc*,
                  const void* const* inputs, void* const* outputs, void* workspace,
                  cudaStream_t stream) noexcept override;

 protected:
  std::string refusal(const nvinfer1::PluginTensorDesc* in) const override;
  std::vector<nvinfer1::PluginField> fields() const override;

 private:
  SelectProblem problem(const nvinfer1::Dims& query, const nvinfer1::Dims& key) const;

  SelectAttributes attributes_;
};

}  // namespace snapexport
