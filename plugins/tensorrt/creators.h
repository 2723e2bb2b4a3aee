// The creators of both plugins, one of each for the life of the library.
#pragma once

#include <NvInferRuntime.h>

#include <array>

namespace snapexport {

const std::array<nvinfer1::IPluginCreatorInterface*, 2>& creators();

}  // namespace snapexport
