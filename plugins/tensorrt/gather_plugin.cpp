#include "tensorrt/gather_plugin.h"

#include <algorithm>
#include <new>
#include <stdexcept>

#include "launchers/gather.h"

namespace snapexport {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

GatherAttributes::GatherAttributes(const nvinfer1::PluginFieldCollection* fields) {
  const snapexport::Attributes given(fields, {"L_sink", "L_recent", "spare"});
  sink = given.integer("L_sink");
  recent = given.integer("L_recent");
  spare = given.integer("spare");
  if (sink < 0) throw std::invalid_argument("attribute 'L_sink' is below 0");
  if (recent < 1) throw std::invalid_argument("attribute 'L_recent' is below 1");
  if (spare < 0) throw std::invalid_argument("attribute 'spare' is below 0");
}

GatherProblem GatherPlugin::problem(const nvinfer1::Dims& key,
                                    const nvinfer1::Dims& positions) const {
  return {static_cast<int32_t>(key.d[1]), static_cast<int32_t>(key.d[2]),
          static_cast<int32_t>(key.d[3]), attributes_.sink,
          attributes_.recent,             static_cast<int32_t>(positions.d[2]),
          attributes_.spare};
}

std::string GatherPlugin::refusal(const nvinfer1::PluginTensorDesc* in) const {
  const nvinfer1::Dims &key = in[0].dims, &value = in[1].dims, &positions = in[3].dims;
  ElementType type;
  if (!element_type(in[0].type, &type)) return "keys must be float32, float16 or bfloat16";
  if (in[1].type != in[0].type) return "keys and values differ in type";
  for (int i : {2, 3}) {
    if (in[i].type != nvinfer1::DataType::kINT64) return "length and positions must be int64";
  }
  if (!is_static(key, 4)) return "key is " + written(key) + ", not [1, Hkv, T, D]";
  if (!is_static(value, 4) || !std::equal(key.d, key.d + 4, value.d)) {
    return "value is " + written(value) + ", not as key, " + written(key);
  }
  if (!is_static(in[2].dims, 1)) return "prompt_length is " + written(in[2].dims) + ", not [1]";
  if (!is_static(positions, 3) || positions.d[1] != key.d[1]) {
    return "topk_positions is " + written(positions) + ", not [1, " + std::to_string(key.d[1]) +
           ", K]";
  }
  return snapexport::refusal(problem(key, positions), type);
}

nvinfer1::IPluginV3* GatherPlugin::clone() noexcept {
  return new (std::nothrow) GatherPlugin(attributes_);
}

int32_t GatherPlugin::getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count,
                                      const nvinfer1::DimsExprs*, int32_t,
                                      nvinfer1::DimsExprs* outputs, int32_t output_count,
                                      nvinfer1::IExprBuilder& expressions) noexcept {
  if (!has_arity(input_count, output_count)) return -1;
  if (inputs[0].nbDims != 4 || inputs[1].nbDims != 4 || inputs[3].nbDims != 3) {
    log_error("SnapStreamGather takes [1, Hkv, T, D] twice, [1] and [1, Hkv, K]");
    return -1;
  }
  const auto* window =
      expressions.constant(attributes_.sink + attributes_.recent + attributes_.spare);
  for (int i = 0; i < output_count; ++i) {
    outputs[i] = inputs[i];
    outputs[i].d[2] =
        expressions.operation(nvinfer1::DimensionOperation::kSUM, *window, *inputs[3].d[2]);
  }
  return 0;
}

int32_t GatherPlugin::enqueue(const nvinfer1::PluginTensorDesc* in,
                              const nvinfer1::PluginTensorDesc*, const void* const* inputs,
                              void* const* outputs, void*, cudaStream_t stream) noexcept {
  ElementType type;
  if (!element_type(in[0].type, &type)) return -1;
  const GatherTensors tensors{inputs[0],
                              inputs[1],
                              static_cast<const int64_t*>(inputs[2]),
                              static_cast<const int64_t*>(inputs[3]),
                              outputs[0],
                              outputs[1]};
  return gather(problem(in[0].dims, in[3].dims), type, tensors, stream);
}

std::vector<PluginField> GatherPlugin::fields() const {
  return {PluginField("L_sink", &attributes_.sink, PluginFieldType::kINT32, 1),
          PluginField("L_recent", &attributes_.recent, PluginFieldType::kINT32, 1),
          PluginField("spare", &attributes_.spare, PluginFieldType::kINT32, 1)};
}

}  // namespace snapexport
