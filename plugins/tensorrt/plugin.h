// Base of both plugins: all of IPluginV3 except the shapes and the launch; attributes and messages.
//
// A plugin's only state is its attributes. Shapes come with every call; TensorRT owns all memory.
#pragma once

#include <NvInferRuntime.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/problem.h"

namespace snapexport {

constexpr const char* kVersion = "1";
// TensorRT's parser looks for a plugin here when a node names no other.
constexpr const char* kNamespace = "";

// Writes a message to TensorRT's logger if there is one, else to stderr.
void log_error(const std::string& message);
void set_logger_finder(nvinfer1::ILoggerFinder* finder);

// Reads and checks a plugin's attributes from TensorRT, by name.
//
// Throws std::invalid_argument for one that is missing, unknown, of a wrong type or out of range.
// TensorRT's ONNX parser passes INT as kINT32 and STRING as kCHAR; kINT64 is accepted too.
class Attributes {
 public:
  // known: the allowed names.
  Attributes(const nvinfer1::PluginFieldCollection* fields, std::initializer_list<const char*> known);

  int32_t integer(const char* name) const { return integers(name, 1)[0]; }
  std::vector<int32_t> integers(const char* name, int count) const;
  float real(const char* name) const;
  // One of several words.
  std::string word(const char* name, std::initializer_list<const char*> choices) const;

 private:
  const nvinfer1::PluginField& field(const char* name) const;

  const nvinfer1::PluginFieldCollection* fields_;
};

// Tensors in the order of inputs, then outputs.
struct Signature {
  const char* name;
  int inputs, outputs;
  unsigned int64;  // bit i: tensor i holds int64; all others hold the element type
  bool is_int64(int tensor) const { return int64 >> tensor & 1; }
};

class Plugin : public nvinfer1::IPluginV3,
               public nvinfer1::IPluginV3OneCore,
               public nvinfer1::IPluginV3OneBuild,
               public nvinfer1::IPluginV3OneRuntime {
 public:
  explicit Plugin(const Signature& signature) : signature_(signature) {}

  nvinfer1::IPluginCapability* getCapabilityInterface(
      nvinfer1::PluginCapabilityType type) noexcept final;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext*) noexcept final {
    return clone();
  }

  const char* getPluginName() const noexcept final { return signature_.name; }
  const char* getPluginVersion() const noexcept final { return kVersion; }
  const char* getPluginNamespace() const noexcept final { return kNamespace; }

  int32_t getNbOutputs() const noexcept final { return signature_.outputs; }
  int32_t getOutputDataTypes(nvinfer1::DataType* outputs, int32_t output_count,
                             const nvinfer1::DataType* inputs,
                             int32_t input_count) const noexcept final;
  bool supportsFormatCombination(int32_t tensor, const nvinfer1::DynamicPluginTensorDesc* tensors,
                                 int32_t inputs, int32_t outputs) noexcept final;
  int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* in, int32_t inputs,
                          const nvinfer1::DynamicPluginTensorDesc* out,
                          int32_t outputs) noexcept final;
  int32_t onShapeChange(const nvinfer1::PluginTensorDesc* in, int32_t inputs,
                        const nvinfer1::PluginTensorDesc* out, int32_t outputs) noexcept final;
  nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept final;

 protected:
  // The reason why these inputs do not fit the attributes; empty if they do.
  virtual std::string refusal(const nvinfer1::PluginTensorDesc* in) const = 0;
  // The attributes by name, pointing into the plugin.
  virtual std::vector<nvinfer1::PluginField> fields() const = 0;

  bool has_arity(int inputs, int outputs) const;

 private:
  int32_t accept(const std::vector<nvinfer1::PluginTensorDesc>& in, int outputs) const noexcept;

  const Signature& signature_;
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_{};
};

// The kernels' element type; false where they have none.
bool element_type(nvinfer1::DataType type, ElementType* element);

// Whether a tensor has that many dimensions, all of them known, and the first (the batch) is 1.
bool is_static(const nvinfer1::Dims& dims, int count);

std::string written(const nvinfer1::Dims& dims);

}  // namespace snapexport
