"""Defines where ONNX Runtime runs graphs, and implements the CPU.

Knows no graph and no batch slot. The GPU is cuda.py's.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.manifest import REBUILD, TensorSpec
from snapexport.runtime.engine.backend import Buffer, Memory

RECORD = {"session.record_ep_graph_assignment_info": "1"}
"""Session setting: the session can report which provider runs which operator."""


class Device(Protocol):
    """An execution provider and its memory."""

    name: str
    """The device's name in an IOBinding."""
    settings: Mapping[str, str]
    """Entries of the session's configuration."""
    captures: bool
    """Whether a run can become a single launch."""
    hint: str
    """What to do if a graph does not load."""

    @property
    def memory(self) -> Memory:
        """Where graphs' buffers lie."""

    def provider(self, captures: bool) -> tuple[str, dict[str, str]]:
        """Return the execution provider of a session, and its options."""

    def close(self) -> None:
        """Free what the device holds beside the sessions."""


class Cpu:
    """The CPU provider."""

    name = "cpu"
    settings: Mapping[str, str] = RECORD
    captures = False
    hint = REBUILD

    def __init__(self) -> None:
        self.memory = HostMemory()

    def provider(self, captures: bool) -> tuple[str, dict[str, str]]:
        return "CPUExecutionProvider", {}

    def close(self) -> None: ...


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
