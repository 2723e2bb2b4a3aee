"""A FAKE of ONNX Runtime's CUDA provider: its CPU provider, at addresses of the fake GPU.

It shows what our calls ask for. A run waits on the stream that the session was given, and bound
memory has to be live device memory. A fault of wrong use is one that an H200 showed with
onnxruntime-gpu 1.31.1. It says nothing of CUDA's kernels.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from snapexport.runtime.ort.devices import PROVIDER as CUDA
from tests.fakes import cuda
from tests.fakes.cuda import FakeCuda, WrongUseError

PROVIDERS = [CUDA, "CPUExecutionProvider"]
BFLOAT16_BYTES = 2
REAL = ort.InferenceSession


def refuses_capture(path: Any) -> bool:
    """Whether the host calculates something of the graph."""
    return False


def read_by_the_cpu(path: Any) -> set[str]:
    """Inputs that onnxruntime-gpu 1.31.1 takes from the host: what no node reads, and a length of
    compress, whose shapes the host calculates."""
    if isinstance(path, bytes):
        return set()
    graph = onnx.load(path, load_external_data=False).graph
    read = {name for node in graph.node for name in node.input} - {"prompt_length"}
    taken = {one.name for one in graph.input} - read
    return taken if graph.name == "compress" else set()


@dataclass
class Place:
    """Where a session reads an input."""

    name: str


@dataclass
class Part:
    """The nodes that one provider runs."""

    ep_name: str
    nodes: list[Any] = field(default_factory=list)

    def get_nodes(self) -> list[Any]:
        return self.nodes


class CudaSession:
    """Stands in for InferenceSession. opened: all of them, in order."""

    gpu: FakeCuda
    loads_provider = True
    leaves_to_cpu: frozenset[str] = frozenset()
    opened: list["CudaSession"]

    def __init__(
        self, path: Any, options: Any, *, providers: Any, enable_fallback: int, **more: Any
    ) -> None:
        ((name, settings),) = providers
        assert (name, enable_fallback) == (CUDA, 0)
        self.stream, self.captures = int(settings["user_compute_stream"]), False
        if settings["enable_cuda_graph"] == "1":
            if refuses_capture(path):
                raise RuntimeError("This session cannot use the graph capture feature\nmore")
            self.captures = True
        self.path, self._of_host = path, read_by_the_cpu(path)
        self._real = REAL(path, options, providers=[PROVIDERS[1]], **more)
        self.opened.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_providers(self) -> list[str]:
        return PROVIDERS if self.loads_provider else PROVIDERS[1:]

    def get_provider_graph_assignment_info(self) -> list["Part"]:
        """All of it for CUDA, but what is left to the CPU."""
        parts = {name: Part(name) for name in PROVIDERS}
        for real in self._real.get_provider_graph_assignment_info():
            for node in real.get_nodes():
                parts[PROVIDERS[node.op_type in self.leaves_to_cpu]].nodes.append(node)
        return [part for part in parts.values() if part.nodes]

    def get_input_memory_infos(self) -> list[Place]:
        inputs = self._real.get_inputs()
        return [Place("Cpu" if one.name in self._of_host else "Cuda") for one in inputs]

    def io_binding(self) -> "CudaBinding":
        return CudaBinding(self.gpu, self._real.io_binding(), self._of_host)

    def run_with_iobinding(self, binding: "CudaBinding") -> None:
        def run() -> None:
            binding.check()
            self._real.run_with_iobinding(binding.real)

        self.gpu.put(self.stream, run)


class CudaBinding:
    """Device addresses for "cuda"; the fake's are the host's. of_host: inputs read by the host,
    which the real one copies as they are bound, if they lie on the device."""

    def __init__(self, gpu: FakeCuda, real: Any, of_host: set[str]) -> None:
        self.real, self._gpu, self._of_host = real, gpu, of_host
        self._bound: list[tuple[int, int]] = []
        self._copies: dict[str, Any] = {}

    def bind_input(
        self, name: str, device: str, index: int, element: Any, shape: list[int], address: int
    ) -> None:
        if name in self._of_host:
            nbytes = _nbytes(element, shape)
            if device == "cuda":
                self._copies[name] = self._gpu.bytes_at(address, nbytes).copy()
                address = self._copies[name].ctypes.data
            elif address not in self._gpu.pinned:
                raise WrongUseError(f"{name} is bound to memory that the host does not write")
        else:
            self._hold(device, address, _nbytes(element, shape))
        self.real.bind_input(name, "cpu", index, element, shape, address)

    def bind_output(
        self, name: str, device: str, index: int, element: Any, shape: list[int], address: int
    ) -> None:
        self._hold(device, address, _nbytes(element, shape))
        self.real.bind_output(name, "cpu", index, element, shape, address)

    def check(self) -> None:
        """Raise an error if bound memory was freed."""
        for address, size in self._bound:
            self._gpu.bytes_at(address, size)

    def _hold(self, device: str, address: int, nbytes: int) -> None:
        if device != "cuda":
            raise WrongUseError(f"bound to {device}: ONNX Runtime would copy it in every run")
        self._bound.append((address, nbytes))
        self.check()


def _nbytes(element: Any, shape: list[int]) -> int:
    width = BFLOAT16_BYTES if isinstance(element, int) else np.dtype(element).itemsize
    return int(np.prod(shape)) * width


def install(monkeypatch: pytest.MonkeyPatch, **options: Any) -> FakeCuda:
    """Both fakes for one test; the GPU is new."""
    gpu = cuda.install(monkeypatch, **options)
    monkeypatch.setattr(CudaSession, "gpu", gpu, raising=False)
    monkeypatch.setattr(CudaSession, "opened", [], raising=False)
    monkeypatch.setattr(ort, "InferenceSession", CudaSession)
    monkeypatch.setattr(ort, "get_available_providers", lambda: PROVIDERS)
    return gpu
