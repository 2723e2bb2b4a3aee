// Where the plugins' messages go: to TensorRT's logger where it gave us one, else to stderr.
#pragma once

#include <NvInferRuntime.h>

#include <string>

namespace snapexport {

void set_logger_finder(nvinfer1::ILoggerFinder* finder);
void log_error(const std::string& message);

}  // namespace snapexport
