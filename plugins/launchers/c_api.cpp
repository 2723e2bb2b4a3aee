#include "launchers/c_api.h"

#include <cstdio>

#include "launchers/gather.h"
#include "launchers/select.h"

using snapexport::ElementType;

namespace {

int tell(const std::string& refusal, char* message, size_t bytes) {
  std::snprintf(message, bytes, "%s", refusal.c_str());
  return refusal.empty() ? 0 : 1;
}

}  // namespace

int snapexport_select_refusal(const snapexport::SelectProblem* problem, int type, char* message,
                              size_t message_bytes) {
  return tell(snapexport::refusal(*problem, ElementType{type}), message, message_bytes);
}

int snapexport_gather_refusal(const snapexport::GatherProblem* problem, int type, char* message,
                              size_t message_bytes) {
  return tell(snapexport::refusal(*problem, ElementType{type}), message, message_bytes);
}

size_t snapexport_select_workspace(const snapexport::SelectProblem* problem, int type) {
  return snapexport::workspace_bytes(*problem, ElementType{type});
}

int snapexport_select(const snapexport::SelectProblem* problem, int type,
                      const snapexport::SelectTensors* tensors, void* workspace,
                      CUstream_st* stream) {
  return snapexport::select(*problem, ElementType{type}, *tensors, workspace, stream);
}

int snapexport_gather(const snapexport::GatherProblem* problem, int type,
                      const snapexport::GatherTensors* tensors, CUstream_st* stream) {
  return snapexport::gather(*problem, ElementType{type}, *tensors, stream);
}
