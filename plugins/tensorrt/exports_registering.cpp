// The library that registers itself when it is loaded: for programs that only dlopen it (Triton's
// tensorrt backend, Polygraphy's --plugins, LD_PRELOAD). It needs TensorRT's getPluginRegistry.
#include "tensorrt/creators.h"
#include "tensorrt/log.h"
#include "tensorrt/plugin.h"

namespace snapexport {
namespace {

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

}  // namespace
}  // namespace snapexport
