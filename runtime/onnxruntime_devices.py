"""Where ONNX Runtime calculates, and where what it reads and writes lies: the CPU, or a GPU.

    Host   the CPU provider; arrays in the host's memory
    Gpu    the CUDA provider; device memory and one stream (onnxruntime_gpu.py)

Both hand out buffers at addresses that never move. Knows no graph and no slot.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.bytes import ITEM_BYTES
from snapexport.contract.manifest import REBUILD, TensorSpec

RECORD = {"session.record_ep_graph_assignment_info": "1"}
"""So that a session can say which provider runs which operator."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One input or output. array: the host's side of it; None for what stays on a GPU."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int
    array: NDArray[Any] | None

    @property
    def nbytes(self) -> int:
        """Of all of it."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def host(self) -> NDArray[Any]:
        """The host's side, of one that has it."""
        assert self.array is not None, f"{self.name} has no host's side"
        return self.array

    @property
    def is_of_host(self) -> bool:
        """Whether the host writes or reads it."""
        return self.name in names.OF_HOST

    def rows(self, start: int, stop: int) -> "Buffer":
        """The same memory from row `start` on: rows follow each other."""
        count, *rest = self.shape
        address = self.address + start * (self.nbytes // count)
        part = None if self.array is None else self.array[start:stop]
        return Buffer(self.name, self.dtype, (stop - start, *rest), address, part)


class Device(Protocol):
    """What is asked of it is done in that order; on a GPU later, and `synchronize` waits for it."""

    name: str
    """As an IOBinding spells it."""
    settings: Mapping[str, str]
    """Of its sessions."""
    captures: bool
    """Whether a run can become one launch."""
    hint: str
    """What to do about a graph that does not load."""

    def provider(self, captures: bool) -> tuple[str, dict[str, str]]:
        """The execution provider of a session, and its options."""
        ...

    def new(self, spec: TensorSpec) -> Buffer:
        """Zeros, because what masked attention multiplies by zero must not be NaN."""
        ...

    def upload(self, buffer: Buffer) -> None:
        """From the host's side to the graph's."""
        ...

    def download(self, buffer: Buffer) -> None:
        """From the graph's side to the host's."""
        ...

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """A copy for the host, now."""
        ...

    def copy(self, target: Buffer, source: Buffer) -> None:
        """All of one buffer over another of its size."""
        ...

    def copy_positions(self, target: Buffer, source: Buffer, count: int) -> None:
        """The first positions of each head; both are [1,Hkv,T,D]."""
        ...

    def zero(self, buffer: Buffer) -> None:
        """Leave no number that isn't finite."""
        ...

    def synchronize(self) -> None:
        """Wait until all of it is done."""
        ...

    def close(self) -> None:
        """Free the buffers."""
        ...


class Host:
    """The CPU. The host's side of a buffer is the buffer itself: nothing goes up or down."""

    name = "cpu"
    settings: Mapping[str, str] = RECORD
    captures = False
    hint = REBUILD

    def provider(self, captures: bool) -> tuple[str, dict[str, str]]:
        return "CPUExecutionProvider", {}

    def new(self, spec: TensorSpec) -> Buffer:
        array = np.zeros(spec.shape, spec.dtype)
        return Buffer(spec.name, spec.dtype, array.shape, array.ctypes.data, array)

    def upload(self, buffer: Buffer) -> None: ...

    def download(self, buffer: Buffer) -> None: ...

    def read(self, buffer: Buffer) -> NDArray[Any]:
        return buffer.host.copy()

    def copy(self, target: Buffer, source: Buffer) -> None:
        target.host[...] = source.host

    def copy_positions(self, target: Buffer, source: Buffer, count: int) -> None:
        target.host[0, :, :count] = source.host[0, :, :count]

    def zero(self, buffer: Buffer) -> None:
        buffer.host[...] = 0

    def synchronize(self) -> None: ...

    def close(self) -> None: ...
