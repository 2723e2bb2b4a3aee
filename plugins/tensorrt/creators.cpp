#include "tensorrt/creators.h"

#include <exception>
#include <string>
#include <vector>

#include "tensorrt/gather_plugin.h"
#include "tensorrt/log.h"
#include "tensorrt/select_plugin.h"

namespace snapexport {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

template <class Operator>
class Creator final : public nvinfer1::IPluginCreatorV3One {
 public:
  explicit Creator(std::vector<PluginField> fields)
      : fields_(std::move(fields)),
        collection_{static_cast<int32_t>(fields_.size()), fields_.data()} {}

  // The same attributes make a plugin from ONNX and from an engine.
  nvinfer1::IPluginV3* createPlugin(const char* name,
                                    const nvinfer1::PluginFieldCollection* fields,
                                    nvinfer1::TensorRTPhase) noexcept override {
    try {
      return new Operator(typename Operator::Attributes(fields));
    } catch (const std::exception& error) {
      log_error(std::string(Operator::kSignature.name) + " '" + (name ? name : "") +
                "': " + error.what());
    }
    return nullptr;
  }

  const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override { return &collection_; }
  const char* getPluginName() const noexcept override { return Operator::kSignature.name; }
  const char* getPluginVersion() const noexcept override { return kVersion; }
  const char* getPluginNamespace() const noexcept override { return kNamespace; }

 private:
  std::vector<PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_;
};

PluginField field(const char* name, PluginFieldType type, int32_t length = 1) {
  return PluginField(name, nullptr, type, length);
}

}  // namespace

const std::array<nvinfer1::IPluginCreatorInterface*, 2>& creators() {
  constexpr auto kInt = PluginFieldType::kINT32, kWord = PluginFieldType::kCHAR;
  static Creator<SelectPlugin> select(
      {field("L_sink", kInt), field("L_recent", kInt), field("K", kInt),
       field("pool_kernel", kInt, 2), field("scale", PluginFieldType::kFLOAT32),
       field("softcap", PluginFieldType::kFLOAT32),
       field("softmax", kWord), field("vote", kWord), field("pool", kWord),
       field("group", kWord)});
  static Creator<GatherPlugin> gather(
      {field("L_sink", kInt), field("L_recent", kInt), field("spare", kInt)});
  static const std::array<nvinfer1::IPluginCreatorInterface*, 2> both{&select, &gather};
  return both;
}

}  // namespace snapexport
