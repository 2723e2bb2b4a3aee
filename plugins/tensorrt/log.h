// Writes the plugins' messages to TensorRT's logger if there is one, else to stderr.
#pragma once

#include <NvInferRuntime.h>

#include <string>

namespace snapexport {

void set_logger_finder(nvinfer1::ILoggerFinder* finder);
void log_error(const std::string& message);

}  // namespace snapexport
