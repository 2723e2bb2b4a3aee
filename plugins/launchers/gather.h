// SnapStreamGather on a stream. Plain C++: neither CUDA's headers nor TensorRT's.
#pragma once

#include <string>

#include "kernels/problem.h"

struct CUstream_st;

namespace snapexport {

std::string refusal(const GatherProblem& problem, ElementType type);

// Enqueues the operator; a cudaError_t, 0 for success.
int gather(const GatherProblem& problem, ElementType type, const GatherTensors& tensors,
           CUstream_st* stream);

}  // namespace snapexport
