// The library for IPluginRegistry::loadLibrary, trtexec --dynamicPlugins and --setPluginsToSerialize:
// TensorRT gets its creators by getCreators. The library needs no symbol of TensorRT.
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
