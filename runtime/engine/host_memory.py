"""Implements memory for backends that run on the CPU, or that fetch what they need from there."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.manifest import TensorSpec
from snapexport.runtime.engine.backend import Buffer


class HostMemory:
    """NumPy arrays (a `Memory`). The host's side of a buffer is the buffer itself."""

    def __init__(self) -> None:
        self._loaded: list[NDArray[np.uint8]] = []

    def allocate(self, spec: TensorSpec) -> Buffer:
        array = np.zeros(spec.shape, spec.dtype)
        return Buffer(spec.name, spec.dtype, array.shape, array.ctypes.data, array)

    def load(self, spec: TensorSpec, data: NDArray[np.uint8]) -> Buffer:
        self._loaded.append(data)  # a buffer holds its address alone
        return Buffer(spec.name, spec.dtype, tuple(spec.shape), data.ctypes.data, None)

    def upload(self, buffer: Buffer) -> None: ...

    def download(self, buffer: Buffer) -> None: ...

    def read(self, buffer: Buffer) -> NDArray[Any]:
        return buffer.host.copy()

    def write(self, buffer: Buffer, array: NDArray[Any]) -> None:
        buffer.host[...] = array

    def copy(self, target: Buffer, source: Buffer) -> None:
        target.host[...] = source.host

    def copy_positions(self, target: Buffer, source: Buffer, count: int) -> None:
        target.host[0, :, :count] = source.host[0, :, :count]

    def zero(self, buffer: Buffer) -> None:
        buffer.host[...] = 0

    def synchronize(self) -> None: ...
