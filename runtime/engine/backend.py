"""Defines what the executor needs of a backend: buffers at fixed addresses, and bound graphs.

Implements the memory of backends that run on the CPU, or that copy from there what they need.

Knows no library, no batch slot and no cache policy. Implementations:

    ort.backend.OnnxRuntimeBackend   ONNX Runtime, on the CPU or on a GPU
    openvino.backend.OpenVinoBackend OpenVINO, on the CPU or on another device of Intel's; which
                                     leaves some steps to the first
    trt.backend.TensorRtBackend      compiled TensorRT engines, on a GPU
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.manifest import REBUILD, GraphName, TensorSpec
from snapexport.errors import UserError
from snapexport.files.dtypes import BY_NUMPY

Integers = NDArray[np.int64]
"""Token ids, positions, lengths."""

Floats = NDArray[np.float32]
"""Logits, temperatures."""


Work = Callable[[], None]
"""Something to run. On a GPU it only puts work on the stream."""


class DeviceError(RuntimeError):
    """CUDA, TensorRT or a closed executor failed at something that worked before."""


class GraphError(UserError, DeviceError):
    """A graph that was loaded failed while it ran: it may be damaged, and its hash with it."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """The memory of one graph input or output.

    array: the host's side. On the CPU it is the memory itself. On a GPU it is pinned host memory if
    the host writes or reads the buffer, and None otherwise.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int
    array: NDArray[Any] | None

    @property
    def nbytes(self) -> int:
        """Size of the whole buffer in bytes."""
        return math.prod(self.shape) * BY_NUMPY[self.dtype].bytes

    @property
    def host(self) -> NDArray[Any]:
        """The host's side, of a buffer that has one."""
        assert self.array is not None, f"{self.name} has no host's side"
        return self.array

    @property
    def is_of_host(self) -> bool:
        """Whether the host writes or reads it."""
        return names.is_of_host(self.name)

    def rows(self, start: int, stop: int) -> "Buffer":
        """Rows [start, stop) of the same memory, along the first dimension."""
        count, *rest = self.shape
        address = self.address + start * (self.nbytes // count)
        part = None if self.array is None else self.array[start:stop]
        return Buffer(self.name, self.dtype, (stop - start, *rest), address, part)

    def reshape_to(self, *shape: int) -> "Buffer":
        """The beginning of the same memory in another shape."""
        count = math.prod(shape)
        part = None if self.array is None else self.array.reshape(-1)[:count].reshape(shape)
        return Buffer(self.name, self.dtype, shape, self.address, part)


Buffers = dict[str, Buffer]
"""Buffers by the names of a graph's inputs and outputs."""


class Memory(Protocol):
    """Memory of a device. Operations are done in call order; `synchronize` waits for them."""

    def allocate(self, spec: TensorSpec) -> Buffer:
        """Return zeros: masked attention multiplies stale entries by 0, and 0 * NaN is NaN."""

    def load(self, spec: TensorSpec, data: NDArray[np.uint8]) -> Buffer:
        """Return memory that holds `data`, to be only read. On the CPU it may be `data`."""

    def upload(self, buffer: Buffer) -> None:
        """Copy the host's side to the device."""

    def download(self, buffer: Buffer) -> None:
        """Copy the device's side to the host."""

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """Return a copy on the host now, also of a buffer without a host's side."""

    def write(self, buffer: Buffer, array: NDArray[Any]) -> None:
        """Copy an array of the host's into a buffer now, also into one without a host's side."""

    def copy(self, target: Buffer, source: Buffer) -> None:
        """Copy a whole buffer over another of its size."""

    def copy_positions(self, target: Buffer, source: Buffer, count: int) -> None:
        """Copy the first `count` positions of each head; both are [1,Hkv,T,D]."""

    def zero(self, buffer: Buffer) -> None:
        """Fill with zeros."""

    def synchronize(self) -> None:
        """Wait until everything before is done."""


class GraphBackend(Protocol):
    """Runs a build's graphs over buffers of its memory."""

    binds_rows: bool
    """Whether a graph can be bound several times, and to rows that begin anywhere in a buffer."""

    @property
    def memory(self) -> Memory:
        """The memory of its graphs' buffers."""

    def bind(self, graph: GraphName, buffers: Buffers) -> Work:
        """Tie each input and output to its buffer, and return what runs the graph."""

    def capture(self, graph: GraphName, work: Work) -> Work | None:
        """Run `work` once, and return a single launch that repeats it.

        work: one run of `graph`, with its copies from and to the host. None where the device cannot
        capture it; `work` may have run then, too.
        """

    def close(self) -> None:
        """Let go of the graphs, and free the memory. A second call does nothing."""


def require_threads(threads: int | None) -> None:
    """Raise UserError for more CPU threads than any machine needs, or none; None: one a core."""
    if threads is not None and not 1 <= threads <= 512:
        raise UserError(f"{threads} threads cannot be used", "use 1 to 512, or leave it out")


class Collectives(Protocol):
    """One rank's side. All ranks call the same methods, in the same order, with equal shapes."""

    rank: int
    ranks: int

    def all_reduce(self, part: NDArray[Any]) -> None:
        """Put the sum of all ranks' parts in the place of this one's: the same bits in each."""

    def all_gather(self, part: NDArray[Any], parts: NDArray[Any]) -> None:
        """Write all ranks' parts [n,...] into `parts` [ranks*n,...], in the order of the ranks."""

    def all_to_all(self, parts: NDArray[Any]) -> None:
        """Send rows [r*n,(r+1)*n) of `parts` [ranks*n,...] to rank r, and put its rows there."""

    def hand(self, source: int, target: int, array: NDArray[Any]) -> None:
        """Write what `array` holds in the rank `source` into that of `target`. Others do nothing
        with theirs, whose size says how much it is.
        """


class HostMemory:
    """NumPy arrays (a `Memory`). The host's side of a buffer is the buffer itself."""

    def __init__(self) -> None:
        self._loaded: list[NDArray[np.uint8]] = []

    def allocate(self, spec: TensorSpec) -> Buffer:
        array = np.zeros(spec.shape, spec.dtype)
        return Buffer(spec.name, spec.dtype, array.shape, array.ctypes.data, array)

    def load(self, spec: TensorSpec, data: NDArray[np.uint8]) -> Buffer:
        self._loaded.append(data)  # a buffer holds only its address
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


def require_promised(
    file: Path | str, promised: Iterable[TensorSpec], found: Mapping[str, tuple[str, list[int]]]
) -> None:
    """Raise UserError for tensors that are not those of the manifest.

    found: a type and a shape by name, as a library has read them from the file.
    """
    expected = {spec.name: (spec.dtype, spec.shape) for spec in promised}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise UserError(
                f"{file} has {found.get(name)} for '{name}', "
                f"the manifest says {expected.get(name)}",
                REBUILD,
            )
