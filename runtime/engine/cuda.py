"""Drives a GPU: memory, one stream, and captured work. The only module that calls CUDA.

Work on the stream runs in call order, and later: `synchronize` waits for it. Every call's status is
checked. Knows neither TensorRT nor ONNX Runtime, and no cache.
"""

import ctypes
import importlib
import math
import weakref
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from snapexport.contract import names
from snapexport.contract.manifest import TensorSpec
from snapexport.contract.memory import spelled, tensor_bytes
from snapexport.errors import UserError, needs_extra
from snapexport.runtime.engine.backend import Buffer, DeviceError

_STAGING_BYTES = 2**25


class Device:
    """CUDA's current GPU, the first that CUDA_VISIBLE_DEVICES names.

    Memory is allocated once and freed by `close`, or with the object. name: "NVIDIA H200".
    compute_capability: "9.0". stream: its handle, for other libraries. Calls raise DeviceError.
    """

    def __init__(self) -> None:
        """Raise UserError where no GPU can be used."""
        self._closed = False
        with needs_extra("tensorrt"):
            self._cuda: Any = importlib.import_module("cuda.bindings.runtime")
        index = self._open()
        attributes = self._cuda.cudaDeviceAttr
        major, minor = (
            self._call("cudaDeviceGetAttribute", attribute, index)
            for attribute in (
                attributes.cudaDevAttrComputeCapabilityMajor,
                attributes.cudaDevAttrComputeCapabilityMinor,
            )
        )
        self.compute_capability = f"{major}.{minor}"
        self.name: str = self._call("cudaGetDeviceProperties", index).name.decode().rstrip("\0")
        # Non-blocking: other libraries of the process may use CUDA's default stream meanwhile.
        handle = self._call("cudaStreamCreateWithFlags", self._cuda.cudaStreamNonBlocking)
        self.stream = int(handle)
        self._memory: list[int] = []
        self._launchable: list[Any] = []
        self._release = weakref.finalize(
            self, _release, self._cuda, handle, self._memory, self._launchable
        )

    def allocate(self, nbytes: int) -> int:
        """Address of new memory, zeroed: masked attention multiplies it by zero."""
        error, address = self._cuda.cudaMalloc(nbytes)
        if error == self._cuda.cudaError_t.cudaErrorMemoryAllocation:
            self._cuda.cudaGetLastError()
            raise UserError(
                f"the GPU has no {spelled(nbytes)} left for the build's buffers",
                "end what else runs on it, or build again with a smaller --batch or --L-max",
            )
        self._check("cudaMalloc", error)
        self._memory.append(int(address))
        self.zero(int(address), nbytes)
        return int(address)

    def pinned(self, shape: list[int], dtype: DTypeLike) -> NDArray[Any]:
        """Zeros in host memory that the GPU reads and writes by itself. It lives as the array."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        address = int(self._call("cudaMallocHost", nbytes))
        block = (ctypes.c_uint8 * nbytes).from_address(address)
        weakref.finalize(block, self._cuda.cudaFreeHost, address)
        array: NDArray[Any] = np.ctypeslib.as_array(block).view(dtype).reshape(shape)
        array[...] = 0
        return array

    def copy(self, target: int, source: int, nbytes: int, kind: str = "DeviceToDevice") -> None:
        """Put a copy on the stream. kind: or "HostToDevice", "DeviceToHost"."""
        direction = getattr(self._cuda.cudaMemcpyKind, f"cudaMemcpy{kind}")
        self._call("cudaMemcpyAsync", target, source, nbytes, direction, self.stream)

    def copy_rows(self, target: int, source: int, rows: int, pitch: int, width: int) -> None:
        """Put the copy of the first `width` bytes of each row of `pitch` bytes on the stream."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call(
            "cudaMemcpy2DAsync", target, pitch, source, pitch, width, rows, kind, self.stream
        )

    def zero(self, address: int, nbytes: int) -> None:
        """Put the zeroing of device memory on the stream."""
        self._call("cudaMemsetAsync", address, 0, nbytes, self.stream)

    def synchronize(self) -> None:
        """Wait until the stream is empty."""
        self._call("cudaStreamSynchronize", self.stream)

    def settle(self) -> None:
        """Wait for everything on the GPU: libraries load their weights on streams of their own."""
        self._call("cudaDeviceSynchronize")

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A call that puts on the stream, at once, all that `work` puts there.

        Addresses are captured, contents are not. Raises DeviceError for what can't be captured;
        the stream is then as before, whatever `work` raises.
        """
        # Relaxed: other threads may allocate meanwhile, and Python's garbage collector may free
        # memory of the GPU in this one. None of that belongs to `work`.
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
        self._call("cudaStreamBeginCapture", self.stream, mode)
        try:
            work()
        except BaseException:
            self._give_up_capture()
            raise
        graph = self._call("cudaStreamEndCapture", self.stream)
        try:
            launchable = self._call("cudaGraphInstantiate", graph, 0)
        finally:
            self._call("cudaGraphDestroy", graph)
        self._launchable.append(launchable)
        return partial(self._call, "cudaGraphLaunch", launchable, self.stream)

    def close(self) -> None:
        """Free everything but pinned arrays that somebody still holds. A second call is nothing."""
        self._closed = True
        self._release()

    def _give_up_capture(self) -> None:
        error, graph = self._cuda.cudaStreamEndCapture(self.stream)
        if error == self._cuda.cudaError_t.cudaSuccess:
            self._cuda.cudaGraphDestroy(graph)
        self._cuda.cudaGetLastError()

    def _open(self) -> int:
        error, count = self._cuda.cudaGetDeviceCount()
        if error != self._cuda.cudaError_t.cudaSuccess or not count:
            raise UserError(
                f"CUDA finds no GPU that it can use: {self._describe(error)}",
                "install NVIDIA's driver, and see what `nvidia-smi` says",
            )
        return int(self._call("cudaGetDevice"))

    def _call(self, name: str, *arguments: Any) -> Any:
        """Make a call. Returns its result beside the status, or None."""
        if self._closed:
            raise DeviceError(f"{name}: the executor was closed")
        error, *values = getattr(self._cuda, name)(*arguments)
        self._check(name, error)
        return values[0] if values else None

    def _check(self, name: str, error: Any) -> None:
        if error != self._cuda.cudaError_t.cudaSuccess:
            self._cuda.cudaGetLastError()  # or the next call would report it as its own
            raise DeviceError(f"{name}: {self._describe(error)}")

    def _describe(self, error: Any) -> str:
        _, text = self._cuda.cudaGetErrorString(error)
        return str(text.decode())


class CudaMemory:
    """Buffers in a GPU's memory (a `Memory`). The host's side of a buffer is pinned memory."""

    def __init__(self) -> None:
        """Raise UserError where no GPU can be used."""
        self.device = Device()

    def allocate(self, spec: TensorSpec) -> Buffer:
        of_host = names.is_of_host(spec.name)
        array = self.device.pinned(spec.shape, spec.dtype) if of_host else None
        address = self.device.allocate(tensor_bytes(spec))
        return Buffer(spec.name, spec.dtype, tuple(spec.shape), address, array)

    def load(self, spec: TensorSpec, data: NDArray[np.uint8]) -> Buffer:
        address = self.device.allocate(data.nbytes)
        self._to_device(address, data)
        return Buffer(spec.name, spec.dtype, tuple(spec.shape), address, None)

    def write(self, buffer: Buffer, array: NDArray[Any]) -> None:
        data = np.ascontiguousarray(array, buffer.dtype)
        self._to_device(buffer.address, data.view(np.uint8).reshape(-1))

    def _to_device(self, address: int, data: NDArray[np.uint8]) -> None:
        staging = self._staging
        for start in range(0, data.nbytes, staging.nbytes):
            part = data[start : start + staging.nbytes]
            staging[: part.nbytes] = part
            self.device.copy(address + start, _address(staging), part.nbytes, "HostToDevice")
            self.device.synchronize()

    @cached_property
    def _staging(self) -> NDArray[np.uint8]:
        """Pinned memory, through which other memory of the host is copied."""
        return self.device.pinned([_STAGING_BYTES], np.uint8)

    def upload(self, buffer: Buffer) -> None:
        self.device.copy(buffer.address, _address(buffer.host), buffer.nbytes, "HostToDevice")

    def download(self, buffer: Buffer) -> None:
        self.device.copy(_address(buffer.host), buffer.address, buffer.nbytes, "DeviceToHost")

    def read(self, buffer: Buffer) -> NDArray[Any]:
        array: NDArray[Any] = np.zeros(buffer.shape, buffer.dtype)
        self.device.copy(_address(array), buffer.address, buffer.nbytes, "DeviceToHost")
        self.device.synchronize()
        return array

    def copy(self, target: Buffer, source: Buffer) -> None:
        assert target.nbytes == source.nbytes
        self.device.copy(target.address, source.address, target.nbytes)

    def copy_positions(self, target: Buffer, source: Buffer, count: int) -> None:
        _, heads, positions, _ = target.shape
        pitch = target.nbytes // heads
        width = pitch // positions * count
        self.device.copy_rows(target.address, source.address, heads, pitch, width)

    def zero(self, buffer: Buffer) -> None:
        self.device.zero(buffer.address, buffer.nbytes)

    def synchronize(self) -> None:
        self.device.synchronize()


def _address(array: NDArray[Any]) -> int:
    address: int = array.ctypes.data
    return address


def _release(cuda: Any, stream: Any, memory: list[int], launchable: list[Any]) -> None:
    """Statuses are not looked at: at the end of a process the driver may be gone before us."""
    cuda.cudaStreamSynchronize(stream)
    for graph in launchable:
        cuda.cudaGraphExecDestroy(graph)
    for address in memory:
        cuda.cudaFree(address)
    cuda.cudaStreamDestroy(stream)
