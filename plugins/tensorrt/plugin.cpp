#include "tensorrt/plugin.h"

#include <exception>

#include "tensorrt/log.h"

namespace snapexport {

using nvinfer1::DataType;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

bool element_type(DataType type, ElementType* element) {
  switch (type) {
    case DataType::kFLOAT: *element = ElementType::kFloat32; return true;
    case DataType::kHALF: *element = ElementType::kFloat16; return true;
    case DataType::kBF16: *element = ElementType::kBFloat16; return true;
    default: return false;
  }
}

bool is_static(const nvinfer1::Dims& dims, int count) {
  if (dims.nbDims != count || dims.d[0] != 1) return false;
  for (int i = 0; i < count; ++i) {
    if (dims.d[i] < 0 || dims.d[i] > 1 << 30) return false;
  }
  return true;
}

std::string written(const nvinfer1::Dims& dims) {
  std::string text = "[";
  for (int i = 0; i < dims.nbDims; ++i) text += (i ? ", " : "") + std::to_string(dims.d[i]);
  return text + "]";
}

nvinfer1::IPluginCapability* Plugin::getCapabilityInterface(
    nvinfer1::PluginCapabilityType type) noexcept {
  switch (type) {
    case nvinfer1::PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

bool Plugin::has_arity(int inputs, int outputs) const {
  if (inputs == signature_.inputs && outputs == signature_.outputs) return true;
  log_error(std::string(signature_.name) + " has " + std::to_string(signature_.inputs) +
            " inputs and " + std::to_string(signature_.outputs) + " outputs, not " +
            std::to_string(inputs) + " and " + std::to_string(outputs));
  return false;
}

int32_t Plugin::getOutputDataTypes(DataType* outputs, int32_t output_count, const DataType* inputs,
                                   int32_t input_count) const noexcept {
  if (!has_arity(input_count, output_count)) return -1;
  for (int i = 0; i < output_count; ++i) {
    outputs[i] = signature_.is_int64(input_count + i) ? DataType::kINT64 : inputs[0];
  }
  return 0;
}

bool Plugin::supportsFormatCombination(int32_t tensor, const DynamicPluginTensorDesc* tensors,
                                       int32_t inputs, int32_t outputs) noexcept {
  if (!has_arity(inputs, outputs)) return false;
  const PluginTensorDesc& one = tensors[tensor].desc;
  if (one.format != nvinfer1::TensorFormat::kLINEAR) return false;
  if (signature_.is_int64(tensor)) return one.type == DataType::kINT64;
  ElementType element;
  return element_type(one.type, &element) && one.type == tensors[0].desc.type;
}

int32_t Plugin::accept(const std::vector<PluginTensorDesc>& in, int outputs) const noexcept {
  try {
    if (!has_arity(static_cast<int>(in.size()), outputs)) return -1;
    const std::string why = refusal(in.data());
    if (why.empty()) return 0;
    log_error(std::string(signature_.name) + ": " + why);
  } catch (const std::exception& error) {
    log_error(error.what());
  }
  return -1;
}

int32_t Plugin::configurePlugin(const DynamicPluginTensorDesc* in, int32_t inputs,
                                const DynamicPluginTensorDesc*, int32_t outputs) noexcept {
  std::vector<PluginTensorDesc> tensors;
  for (int i = 0; i < inputs; ++i) tensors.push_back(in[i].desc);
  return accept(tensors, outputs);
}

int32_t Plugin::onShapeChange(const PluginTensorDesc* in, int32_t inputs, const PluginTensorDesc*,
                              int32_t outputs) noexcept {
  return accept(std::vector<PluginTensorDesc>(in, in + inputs), outputs);
}

nvinfer1::PluginFieldCollection const* Plugin::getFieldsToSerialize() noexcept {
  fields_ = fields();
  collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
  return &collection_;
}

}  // namespace snapexport
