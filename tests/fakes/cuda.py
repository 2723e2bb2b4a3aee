"""A FAKE of cuda.bindings.runtime: the host's memory at real addresses, and no GPU.

Calls on a stream wait until it is synchronized. New memory is full of NaN. A captured graph is a
list of calls, which a launch repeats. These are faults: an access to memory that is freed, not
allocated or too short, a double free, and a synchronization during a capture. The fake shows
neither speed nor a driver's own errors.
"""

# ruff: noqa: N801, N815 (the names are CUDA's)

import ctypes
import itertools
import sys
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

ALIGNMENT = 256
POISON = 0xFF
"""Every float of such bytes is NaN."""


Works = list[Callable[[], None]]
Blocks = dict[int, NDArray[np.uint8]]
"""By address."""


class WrongUseError(AssertionError):
    """Wrong use of CUDA. A real GPU would give wrong numbers, or an error much later."""


class cudaError_t(IntEnum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorStreamCaptureUnsupported = 900
    cudaErrorStreamCaptureInvalidated = 901


class cudaMemcpyKind(IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2
    cudaMemcpyDeviceToDevice = 3


class cudaDeviceAttr(IntEnum):
    cudaDevAttrComputeCapabilityMajor = 75
    cudaDevAttrComputeCapabilityMinor = 76


class cudaStreamCaptureMode(IntEnum):
    cudaStreamCaptureModeThreadLocal = 1
    cudaStreamCaptureModeRelaxed = 2


OK = (cudaError_t.cudaSuccess,)


class cudaDeviceProp:
    name, major, minor = b"NVIDIA Fake" + b"\0" * 8, 9, 0


class FakeCuda:
    """Stands in for the module. calls: how often each function was called.

    to_host: the bytes of each copy to the host, when it was done.
    """

    cudaError_t = cudaError_t
    cudaMemcpyKind = cudaMemcpyKind
    cudaDeviceAttr = cudaDeviceAttr
    cudaStreamCaptureMode = cudaStreamCaptureMode
    cudaDeviceProp = cudaDeviceProp
    cudaStreamNonBlocking = 1

    def __init__(self, memory: int = 140 << 30, driver: bool = True) -> None:
        self.calls: Counter[str] = Counter()
        self.to_host: list[int] = []
        self.device: Blocks = {}
        self.pinned: Blocks = {}
        self.streams: set[int] = set()
        self.graphs: dict[int, Works] = {}
        self.launchable: dict[int, Works] = {}
        self.capturing: Works | None = None
        self._relaxed = False
        self._memory, self._left = memory, memory
        self._status = OK if driver else (cudaError_t.cudaErrorInsufficientDriver,)
        self._queue: Works = []
        self._freed: list[NDArray[np.uint8]] = []  # so that no address comes twice
        self._invalidated = False
        self._handles = itertools.count(101)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("cuda") and name[4].isupper() and callable(value):
            self.calls[name] += not isinstance(value, type)
        return value

    # What the tests and the fake TensorRT use.

    def bytes_at(self, address: int, size: int) -> NDArray[np.uint8]:
        """Device memory, if all of it is in one live allocation."""
        return _within(self.device, address, size)

    def put(self, stream: int, work: Callable[[], None]) -> None:
        """Work for later, or for a graph."""
        if stream not in self.streams:
            raise WrongUseError("no such stream")
        (self._queue if self.capturing is None else self.capturing).append(work)

    def invalidate(self) -> None:
        """A call that can't be captured."""
        self._invalidated = True

    def run_queue(self) -> None:
        while self._queue:
            self._queue.pop(0)()

    # The functions, with the parameters of the real ones.

    def cudaGetDeviceCount(self) -> tuple[Any, ...]:
        return (*self._status, 1 if self._status == OK else None)

    def cudaGetDevice(self) -> tuple[Any, ...]:
        return (*self._status, 0 if self._status == OK else None)

    def cudaMemGetInfo(self) -> tuple[Any, ...]:
        return (*OK, self._left, self._memory)

    def cudaDeviceGetAttribute(self, attr: cudaDeviceAttr, device: int) -> tuple[Any, ...]:
        return (*OK, 9 if attr == cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor else 0)

    def cudaGetDeviceProperties(self, device: int) -> tuple[Any, ...]:
        return (*OK, cudaDeviceProp())

    def cudaGetErrorString(self, error: cudaError_t) -> tuple[Any, ...]:
        return (*OK, cudaError_t(error).name.encode())

    def cudaGetLastError(self) -> tuple[Any, ...]:
        return OK

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Any, ...]:
        stream = next(self._handles)
        self.streams.add(stream)
        return (*OK, stream)

    def cudaStreamDestroy(self, stream: int) -> tuple[Any, ...]:
        self.streams.remove(stream)
        return OK

    def cudaStreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        return self._wait()

    def cudaDeviceSynchronize(self) -> tuple[Any, ...]:
        return self._wait()

    def cudaMalloc(self, size: int) -> tuple[Any, ...]:
        if self._is_unsafe():
            return self._not_while_capturing()
        if size > self._left:
            return cudaError_t.cudaErrorMemoryAllocation, None
        self._left -= size
        return (*OK, _allocate(self.device, size))

    def cudaFree(self, devPtr: int) -> tuple[Any, ...]:
        if self._is_unsafe():
            return self._not_while_capturing()
        self._free(self.device, devPtr)
        return OK

    def cudaMallocHost(self, size: int) -> tuple[Any, ...]:
        return (*OK, _allocate(self.pinned, size))

    def cudaFreeHost(self, ptr: int) -> tuple[Any, ...]:
        self._free(self.pinned, ptr)
        return OK

    def cudaMemsetAsync(self, devPtr: int, value: int, count: int, stream: int) -> tuple[Any, ...]:
        self.put(stream, lambda: self.bytes_at(devPtr, count).fill(value))
        return OK

    def cudaMemcpyAsync(
        self, dst: int, src: int, count: int, kind: cudaMemcpyKind, stream: int
    ) -> tuple[Any, ...]:
        def copy() -> None:
            to_host = kind == cudaMemcpyKind.cudaMemcpyDeviceToHost
            from_host = kind == cudaMemcpyKind.cudaMemcpyHostToDevice
            source = _within(self.pinned if from_host else self.device, src, count)
            target = self._host_at(dst, count) if to_host else self.bytes_at(dst, count)
            target[:] = source
            self.to_host += [count] * to_host

        self.put(stream, copy)
        return OK

    def cudaMemcpy2DAsync(
        self,
        dst: int,
        dpitch: int,
        src: int,
        spitch: int,
        width: int,
        height: int,
        kind: cudaMemcpyKind,
        stream: int,
    ) -> tuple[Any, ...]:
        def copy() -> None:
            for row in range(height):
                target = self.bytes_at(dst + row * dpitch, width)
                target[:] = self.bytes_at(src + row * spitch, width)

        if width > min(dpitch, spitch) or kind != cudaMemcpyKind.cudaMemcpyDeviceToDevice:
            raise WrongUseError("rows wider than their pitch")
        self.put(stream, copy)
        return OK

    def cudaStreamBeginCapture(self, stream: int, mode: cudaStreamCaptureMode) -> tuple[Any, ...]:
        if self.capturing is not None:
            raise WrongUseError("captured twice at once")
        self.capturing, self._invalidated = [], False
        self._relaxed = mode == cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
        return OK

    def cudaStreamEndCapture(self, stream: int) -> tuple[Any, ...]:
        work, self.capturing = self.capturing, None
        if self._invalidated:
            return cudaError_t.cudaErrorStreamCaptureInvalidated, None
        graph = next(self._handles)
        self.graphs[graph] = work or []
        return (*OK, graph)

    def cudaGraphInstantiate(self, graph: int, flags: int) -> tuple[Any, ...]:
        launchable = next(self._handles)
        self.launchable[launchable] = self.graphs[graph]
        return (*OK, launchable)

    def cudaGraphDestroy(self, graph: int) -> tuple[Any, ...]:
        del self.graphs[graph]
        return OK

    def cudaGraphLaunch(self, graphExec: int, stream: int) -> tuple[Any, ...]:
        for work in self.launchable[graphExec]:
            self.put(stream, work)
        return OK

    def cudaGraphExecDestroy(self, graphExec: int) -> tuple[Any, ...]:
        del self.launchable[graphExec]
        return OK

    def _is_unsafe(self) -> bool:
        """To allocate or to free: only a relaxed capture allows it."""
        return self.capturing is not None and not self._relaxed

    def _wait(self) -> tuple[Any, ...]:
        if self.capturing is not None:
            return self._not_while_capturing()
        self.run_queue()
        return OK

    def _not_while_capturing(self) -> tuple[Any, ...]:
        self.invalidate()
        return cudaError_t.cudaErrorStreamCaptureUnsupported, None

    def _free(self, blocks: Blocks, address: int) -> None:
        if not address:
            return  # CUDA takes a null pointer
        if address not in blocks:
            raise WrongUseError(f"{address:#x} was freed twice, or never allocated")
        self.run_queue()
        self._freed.append(blocks.pop(address))
        self._freed[-1].fill(POISON)

    def _host_at(self, address: int, size: int) -> NDArray[np.uint8]:
        if any(start <= address < start + len(block) for start, block in self.device.items()):
            raise WrongUseError("device memory taken for the host's")
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _within(blocks: Blocks, address: int, size: int) -> NDArray[np.uint8]:
    for start, block in blocks.items():
        if start <= address and address + size <= start + len(block):
            return block[address - start : address - start + size]
    raise WrongUseError(f"{size} bytes at {address:#x} are no live memory of this kind")


def _allocate(blocks: Blocks, size: int) -> int:
    room = np.full(size + ALIGNMENT, POISON, np.uint8)
    offset = -room.ctypes.data % ALIGNMENT
    blocks[room.ctypes.data + offset] = room[offset : offset + size]
    return int(room.ctypes.data + offset)


def install(monkeypatch: pytest.MonkeyPatch, **options: Any) -> FakeCuda:
    """A new GPU in the place of cuda-python's module, for one test."""
    gpu = FakeCuda(**options)
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(runtime=gpu))
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", gpu)
    return gpu
