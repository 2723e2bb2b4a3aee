#include "tensorrt/log.h"

#include <atomic>
#include <cstdio>

namespace snapexport {
namespace {

std::atomic<nvinfer1::ILoggerFinder*> logger_finder{nullptr};

}  // namespace

void set_logger_finder(nvinfer1::ILoggerFinder* finder) { logger_finder = finder; }

void log_error(const std::string& message) {
  nvinfer1::ILoggerFinder* finder = logger_finder;
  nvinfer1::ILogger* logger = finder ? finder->findLogger() : nullptr;
  const std::string text = "snapexport: " + message;
  if (logger) {
    logger->log(nvinfer1::ILogger::Severity::kERROR, text.c_str());
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
}

}  // namespace snapexport
