// SnapStreamGather as a TensorRT plugin.
//
// key, value [1,Hkv,T,D], prompt_length int64 [1], topk_positions int64 [1,Hkv,K]
//     -> present_key, present_value [1,Hkv,S,D]
#pragma once

#include "tensorrt/plugin.h"

namespace snapexport {

struct GatherAttributes {
  explicit GatherAttributes(const nvinfer1::PluginFieldCollection* fields);

  int32_t sink, recent, spare;
};

class GatherPlugin final : public Plugin {
 public:
  static constexpr Signature kSignature{"SnapStreamGather", 4, 2, 0b001100};
  using Attributes = GatherAttributes;

  explicit GatherPlugin(const GatherAttributes& attributes)
      : Plugin(kSignature), attributes_(attributes) {}

  nvinfer1::IPluginV3* clone() noexcept override;
  int32_t getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count,
                          const nvinfer1::DimsExprs*, int32_t, nvinfer1::DimsExprs* outputs,
                          int32_t output_count,
                          nvinfer1::IExprBuilder& expressions) noexcept override;
  int32_t enqueue(const nvinfer1::PluginTensorDesc* in, const nvinfer1::PluginTensorDesc*,
                  const void* const* inputs, void* const* outputs, void*,
                  cudaStream_t stream) noexcept override;

 protected:
  std::string refusal(const nvinfer1::PluginTensorDesc* in) const override;
  std::vector<nvinfer1::PluginField> fields() const override;

 private:
  GatherProblem problem(const nvinfer1::Dims& key, const nvinfer1::Dims& positions) const;

  GatherAttributes attributes_;
};

}  // namespace snapexport
