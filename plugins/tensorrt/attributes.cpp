#include "tensorrt/attributes.h"

#include <cstring>
#include <limits>
#include <stdexcept>

namespace snapexport {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

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

}  // namespace snapexport
