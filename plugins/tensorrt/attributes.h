// Reads and checks a plugin's attributes from TensorRT, by name.
//
// Throws std::invalid_argument for one that is missing, unknown, of a wrong type or out of range.
// TensorRT's ONNX parser passes INT as kINT32 and STRING as kCHAR; kINT64 is accepted too.
#pragma once

#include <NvInferRuntime.h>

#include <initializer_list>
#include <string>
#include <vector>

namespace snapexport {

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

}  // namespace snapexport
