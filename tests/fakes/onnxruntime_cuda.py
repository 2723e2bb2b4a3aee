"""A FAKE of ONNX Runtime's CUDA provider: its CPU provider, at addresses of the fake GPU.

It shows what our calls ask for. A run waits on the stream that the session was given, and bound
memory has to be live device memory. As onnxruntime-gpu 1.31.1 does, it captures no graph in which
the host reads what the GPU calculates, and that is an error. It says nothing of CUDA's kernels.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from snapexport.runtime.ort import session
from snapexport.runtime.ort.cuda import PROVIDER as CUDA
from tests.fakes import cuda
from tests.fakes.cuda import FakeCuda, WrongUseError

PROVIDERS = [CUDA, "CPUExecutionProvider"]
BFLOAT16_BYTES = 2
REAL = ort.InferenceSession


def reads_on_host(path: Any) -> bool:
    """Whether GroupQueryAttention's total_sequence_length is no constant of the file."""
    graph = onnx.load(path, load_external_data=False).graph
    constants = {one.name for one in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    return any(node.input[6] not in constants for node in nodes)


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
            if reads_on_host(path):
                raise RuntimeError("This session cannot use the graph capture feature\nmore")
            self.captures = True
        self.path = path
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

    def io_binding(self) -> "CudaBinding":
        return CudaBinding(self.gpu, self._real.io_binding())

    def run_with_iobinding(self, binding: "CudaBinding") -> None:
        def run() -> None:
            binding.check()
            self._real.run_with_iobinding(binding.real)

        self.gpu.put(self.stream, run)


class CudaBinding:
    """Device addresses for "cuda"; the fake's are the host's."""

    def __init__(self, gpu: FakeCuda, real: Any) -> None:
        self.real, self._gpu = real, gpu
        self._bound: list[tuple[int, int]] = []

    def bind_input(self, name: str, *place: Any) -> None:
        self.real.bind_input(name, "cpu", *self._at(*place))

    def bind_output(self, name: str, *place: Any) -> None:
        self.real.bind_output(name, "cpu", *self._at(*place))

    def check(self) -> None:
        """Raise an error if bound memory was freed."""
        for address, size in self._bound:
            self._gpu.bytes_at(address, size)

    def _at(self, device: str, index: int, element: Any, shape: list[int], place: int) -> Any:
        if device != "cuda":
            raise WrongUseError(f"bound to {device}: ONNX Runtime would copy it in every run")
        width = BFLOAT16_BYTES if isinstance(element, int) else np.dtype(element).itemsize
        self._bound.append((place, int(np.prod(shape)) * width))
        self.check()
        return index, element, shape, place


def install(monkeypatch: pytest.MonkeyPatch, **options: Any) -> FakeCuda:
    """Both fakes for one test; the GPU is new."""
    gpu = cuda.install(monkeypatch, **options)
    monkeypatch.setattr(CudaSession, "gpu", gpu, raising=False)
    monkeypatch.setattr(CudaSession, "opened", [], raising=False)
    monkeypatch.setattr(session.ort, "InferenceSession", CudaSession)
    monkeypatch.setattr(ort, "get_available_providers", lambda: PROVIDERS)
    return gpu
