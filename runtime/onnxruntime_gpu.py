"""A GPU for ONNX Runtime: its CUDA provider, device memory, and one stream for all sessions."""

import importlib
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.bytes import tensor_bytes
from snapexport.contract.errors import UserError, needs_extra
from snapexport.contract.manifest import TensorSpec
from snapexport.runtime.cuda_device import Device
from snapexport.runtime.onnxruntime_devices import RECORD, Buffer

CUDA = "CUDAExecutionProvider"

_CAPTURES_SAFELY = (1, 31)
"""Before, a captured GatherND read host memory at each launch that was gone since the first:
https://github.com/microsoft/onnxruntime/pull/32120."""


class Gpu:
    """CUDA's current GPU. What the host writes and reads is pinned, the rest has no host's side."""

    name = "cuda"
    hint = "see what `nvidia-smi` says: each graph takes a copy of the weights on the GPU"
    # Weights take the memory that they need, beside the arena and not in it.
    settings: Mapping[str, str] = RECORD | {"session.use_device_allocator_for_initializers": "1"}

    def __init__(self) -> None:
        """Raise UserError where ONNX Runtime or CUDA has no GPU."""
        require_cuda_provider()
        with needs_extra("gpu"):
            importlib.import_module("cuda.bindings.runtime")
        self.captures = _captures_safely()
        self._device = Device()

    def provider(self, captures: bool) -> tuple[str, dict[str, str]]:
        """All sessions calculate on the one stream, on which copies go as well: no two of them
        have to wait for each other. Memory is taken as it is needed, not doubled: caches and
        weights leave no room for guesses."""
        return CUDA, {
            "device_id": "0",
            "user_compute_stream": str(self._device.stream),
            "arena_extend_strategy": "kSameAsRequested",
            "enable_cuda_graph": str(int(captures)),
        }

    def new(self, spec: TensorSpec) -> Buffer:
        of_host = spec.name in names.OF_HOST
        array = self._device.pinned(spec.shape, spec.dtype) if of_host else None
        address = self._device.allocate(tensor_bytes(spec))
        return Buffer(spec.name, spec.dtype, tuple(spec.shape), address, array)

    def upload(self, buffer: Buffer) -> None:
        self._device.upload(buffer.address, buffer.host)

    def download(self, buffer: Buffer) -> None:
        self._device.download(buffer.host, buffer.address)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        array: NDArray[Any] = np.zeros(buffer.shape, buffer.dtype)
        self._device.download(array, buffer.address)
        self._device.synchronize()
        return array

    def copy(self, target: Buffer, source: Buffer) -> None:
        self._device.copy(target.address, source.address, target.nbytes)

    def copy_positions(self, target: Buffer, source: Buffer, count: int) -> None:
        _, heads, positions, _ = target.shape
        pitch = target.nbytes // heads
        width = pitch // positions * count
        self._device.copy_rows(target.address, source.address, heads, pitch, width)

    def zero(self, buffer: Buffer) -> None:
        self._device.zero(buffer.address, buffer.nbytes)

    def synchronize(self) -> None:
        self._device.synchronize()

    def close(self) -> None:
        self._device.close()


def require_cuda_provider() -> None:
    """Raise UserError for an ONNX Runtime that was made for the CPU alone."""
    with needs_extra("gpu"):
        import onnxruntime as ort
    if CUDA not in ort.get_available_providers():
        raise UserError(
            f"this onnxruntime {ort.__version__} has no CUDA provider",
            "pip uninstall onnxruntime, then pip install --force-reinstall 'snapexport[gpu]': "
            "both packages have files of the same names",
        )
    # CUDA's libraries as pip installs them are not where the system's loader looks. What is missing
    # is printed, and standard output is for answers.
    with redirect_stdout(sys.stderr):
        ort.preload_dlls()


def _captures_safely() -> bool:
    import onnxruntime as ort

    major, minor, *_ = ort.__version__.split(".")
    if (int(major), int(minor)) >= _CAPTURES_SAFELY:
        return True
    warnings.warn(
        f"decode runs without a CUDA graph, and slower: onnxruntime {ort.__version__} is older "
        f"than {'.'.join(map(str, _CAPTURES_SAFELY))}",
        RuntimeWarning,
        2,
    )
    return False
