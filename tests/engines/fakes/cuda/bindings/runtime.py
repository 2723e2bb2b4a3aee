"""A FAKE of the CUDA runtime: one GPU that reports its properties."""

import enum
from types import SimpleNamespace


class cudaError_t(enum.IntEnum):  # noqa: N801
    cudaSuccess = 0  # noqa: N815
    cudaErrorNoDevice = 100  # noqa: N815


problem = cudaError_t.cudaSuccess


def cudaGetDevice() -> tuple[cudaError_t, int | None]:
    return (problem, None) if problem else (problem, 0)


def cudaGetDeviceProperties(device: int) -> tuple[cudaError_t, SimpleNamespace]:
    assert device == 0
    properties = SimpleNamespace(name=b"NVIDIA H200\0\0", major=9, minor=0)
    return problem, properties


def cudaMemGetInfo() -> tuple[cudaError_t, int, int]:
    return problem, 140 * 2**30, 141 * 2**30
