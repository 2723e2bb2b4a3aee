// C interface of the launchers, which tests and tools load by ctypes. All pointers are to device
// memory. `message`, of `message_bytes`, receives the reason of a refusal.
#pragma once

#include <cstddef>

#include "kernels/problem.h"

#define SNAPEXPORT_C extern "C" __attribute__((visibility("default")))

struct CUstream_st;

// Both return 1 and a message if the problem is refused, else 0.
SNAPEXPORT_C int snapexport_select_refusal(const snapexport::SelectProblem* problem, int type,
                                           char* message, size_t message_bytes);
SNAPEXPORT_C int snapexport_gather_refusal(const snapexport::GatherProblem* problem, int type,
                                           char* message, size_t message_bytes);

SNAPEXPORT_C size_t snapexport_select_workspace(const snapexport::SelectProblem* problem, int type);

// Both return a cudaError_t.
SNAPEXPORT_C int snapexport_select(const snapexport::SelectProblem* problem, int type,
                                   const snapexport::SelectTensors* tensors, void* workspace,
                                   CUstream_st* stream);
SNAPEXPORT_C int snapexport_gather(const snapexport::GatherProblem* problem, int type,
                                   const snapexport::GatherTensors* tensors, CUstream_st* stream);
