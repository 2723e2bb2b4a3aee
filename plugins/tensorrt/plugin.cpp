#include "tensorrt/plugin.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <stdexcept>

namespace snapexport {

using nvinfer1::DataType;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;
using nvinfer1::PluginTensorDesc;

namespace {

std::atomic<nvinfer1::ILoggerFinder*> logger_finder{nullptr};

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw std::invalid_argument("attribute '" + name + "' " + why);
}

bool contains(std::initializer_list<const char*> names, const std::string& name) {
  for (const char* one : names) {
    if (name == one) return true;
  }
  return false;
}

std::string listed(std::initializer_list<const char*> names) {
  std::string text;
  for (const char* one : names) text += (text.empty() ? "" : ", ") + std::string(one);
  return text;
}

int64_t integer_at(const PluginField& field, int index) {
  if (field.type == PluginFieldType::kINT32) return static_cast<const int32_t*>(field.data)[index];
  return static_cast<const int64_t*>(field.data)[index];
}

}  // namespace

void set_logger_finder(nvinfer1::ILoggerFinder* finder) { logger_finder = finder; }

void log_error(const std::string& message) {
  nvinfer1::ILoggerFinder* finder = logger_finder;
  nvinfer1::ILogger* logger = finder ? finder->findLogger() : nullptr;
  const std::string text = "snapexport: " + message;
  if (logger) {
    logger->log(nvinfer1::ILogger::Severity::kERROR, text.c_str());
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
}

Attributes::Attributes(const nvinfer1::PluginFieldCollection* fields,
                       std::initializer_list<const char*> known)
    : fields_(fields) {
  if (!fields) throw std::invalid_argument("no attributes were given");
  for (int i = 0; i < fields->nbFields; ++i) {
    const char* name = fields->fields[i].name;
    if (!name || !contains(known, name)) {
      refuse(name ? name : "", "is unknown; known are " + listed(known));
    }
  }
}

const PluginField& Attributes::field(const char* name) const {
  for (int i = 0; i < fields_->nbFields; ++i) {
    const PluginField& one = fields_->fields[i];
    if (std::strcmp(one.name, name) == 0 && one.data) return one;
  }
  refuse(name, "is missing");
}

std::vector<int32_t> Attributes::integers(const char* name, int count) const {
  const PluginField& one = field(name);
  if (one.type != PluginFieldType::kINT32 && one.type != PluginFieldType::kINT64) {
    refuse(name, "is not an integer");
  }
  if (one.length != count) {
    refuse(name, "has " + std::to_string(one.length) + " values, not " + std::to_string(count));
  }
  std::vector<int32_t> values;
  for (int i = 0; i < count; ++i) {
    const int64_t value = integer_at(one, i);
    if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
      refuse(name, "is " + std::to_string(value) + ": it does not fit into 32 bits");
    }
    values.push_back(static_cast<int32_t>(value));
  }
  return values;
}

float Attributes::real(const char* name) const {
  const PluginField& one = field(name);
  if (one.type != PluginFieldType::kFLOAT32 || one.length != 1) refuse(name, "is not one float32");
  return *static_cast<const float*>(one.data);
}

std::string Attributes::word(const char* name, std::initializer_list<const char*> choices) const {
  const PluginField& one = field(name);
  if (one.type != PluginFieldType::kCHAR || one.length < 0) refuse(name, "is not a string");
  std::string value(static_cast<const char*>(one.data), one.length);
  value = value.c_str();  // a terminating zero may have been counted
  if (!contains(choices, value)) {
    refuse(name, "is '" + value + "'; choose from " + listed(choices));
  }
  return value;
}

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
