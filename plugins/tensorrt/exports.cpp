// The creators of both plugins, and the two ways to export them: a library for each.
#include <array>
#include <exception>
#include <string>
#include <vector>

#include "tensorrt/gather_plugin.h"
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

// One creator of each plugin for the life of the library.
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

#ifdef SNAPEXPORT_REGISTERING

// The library registers itself when it is loaded: for programs that only dlopen it (Triton's
// tensorrt backend, Polygraphy's --plugins, LD_PRELOAD). It needs TensorRT's getPluginRegistry.
struct Registration {
  Registration() {
    nvinfer1::IPluginRegistry* registry = getPluginRegistry();
    if (!registry) {
      log_error("TensorRT has no plugin registry: nothing was registered");
      return;
    }
    for (nvinfer1::IPluginCreatorInterface* creator : creators()) {
      if (!registry->registerCreator(*creator, kNamespace)) {
        log_error("a plugin of the same name and version is registered already: it stays");
      }
    }
  }
} registration;

#endif

}  // namespace
}  // namespace snapexport

#ifndef SNAPEXPORT_REGISTERING

// The library is for IPluginRegistry::loadLibrary, trtexec --dynamicPlugins and
// --setPluginsToSerialize: TensorRT gets its creators by getCreators. It needs no symbol of TensorRT.
#define SNAPEXPORT_EXPORT extern "C" __attribute__((visibility("default")))

SNAPEXPORT_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
  count = static_cast<int32_t>(snapexport::creators().size());
  return snapexport::creators().data();
}

SNAPEXPORT_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
  snapexport::set_logger_finder(finder);
}

#endif
