// A plugin's attributes as TensorRT hands them over: each is checked and taken by its name.
//
// Whatever is missing, unknown, of a wrong type or out of range is a std::invalid_argument that says
// so. TensorRT's ONNX parser gives INT as kINT32, STRING as kCHAR; kINT64 is taken too.
#pragma once

#include <NvInferRuntime.h>

#include <initializer_list>
#include <string>
#include <vector>

namespace snapexport {

class Attributes {
 public:
  // known: the names that there may be.
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
