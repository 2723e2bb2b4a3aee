// SnapKVSelect on a stream. Plain C++: neither CUDA's headers nor TensorRT's.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/problem.h"

struct CUstream_st;  // cudaStream_t points to it

namespace snapexport {

// The reason why the kernels refuse this problem; empty if they take it.
std::string refusal(const SelectProblem& problem, ElementType type);

// Device memory that `select` needs for its own use, 256-byte aligned.
size_t workspace_bytes(const SelectProblem& problem, ElementType type);

// Enqueues the whole operator; a cudaError_t, 0 for success. The prompt's length is read on the
// device, so that the same launch serves every prompt.
int select(const SelectProblem& problem, ElementType type, const SelectTensors& tensors,
           void* workspace, CUstream_st* stream);

}  // namespace snapexport
