// The library for IPluginRegistry::loadLibrary, trtexec --dynamicPlugins and --setPluginsToSerialize:
// TensorRT asks it for its creators. It needs no symbol of TensorRT's.
#include "tensorrt/creators.h"
#include "tensorrt/log.h"

#define SNAPEXPORT_EXPORT extern "C" __attribute__((visibility("default")))

SNAPEXPORT_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
  count = static_cast<int32_t>(snapexport::creators().size());
  return snapexport::creators().data();
}

SNAPEXPORT_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
  snapexport::set_logger_finder(finder);
}
