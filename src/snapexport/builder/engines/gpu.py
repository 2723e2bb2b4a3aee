"""Reads the properties of the present GPU from CUDA."""

from dataclasses import dataclass

from snapexport.errors import UserError, needs_extra


@dataclass(frozen=True)
class Gpu:
    """name: such as NVIDIA H200. compute_capability: such as 9.0. free: bytes."""

    name: str
    compute_capability: str
    free: int


def present_gpu() -> Gpu:
    """The current device: CUDA_VISIBLE_DEVICES chooses it. Raises UserError where there is none."""
    with needs_extra("tensorrt"):
        from cuda.bindings import runtime as cuda

    problem, device = cuda.cudaGetDevice()
    if not problem:
        problem, properties = cuda.cudaGetDeviceProperties(device)
    if not problem:
        problem, free, _ = cuda.cudaMemGetInfo()
    if problem:
        raise UserError(
            f"CUDA finds no GPU: {problem.name}",
            "an engine is built on the GPU that will run it: check `nvidia-smi`; "
            "--estimate and `snapexport lint` need no GPU",
        )
    capability = f"{properties.major}.{properties.minor}"
    return Gpu(properties.name.rstrip(b"\0").decode(), capability, free)
