"""Defines where ONNX Runtime runs graphs: the CPU, or a GPU with one stream for all.

Knows no graph and no batch slot.
"""

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Protocol

from snapexport.contract.manifest import REBUILD
from snapexport.errors import UserError, needs_extra
from snapexport.runtime.engine.backend import HostMemory, Memory
from snapexport.runtime.engine.cuda import CudaMemory

RECORD = {"session.record_ep_graph_assignment_info": "1"}
"""Session setting: the session can report which provider runs which operator."""


class Device(Protocol):
    """An execution provider and its memory."""

    name: str
    """The device's name in an IOBinding."""
    settings: Mapping[str, str]
    """Entries of the session's configuration."""
    left_out: Sequence[str]
    """ONNX Runtime's optimizers that would write copies of weights, which stay in mapped files."""
    captures: bool
    """Whether a run can become a single launch."""
    hint: str
    """What to do if a graph does not load."""

    @property
    def memory(self) -> Memory:
        """The memory of graphs' buffers."""

    def provider(self, captures: bool) -> tuple[str, dict[str, str]]:
        """Return the execution provider of a session, and its options."""

    def close(self) -> None:
        """Free what the device holds beside the sessions."""


class Cpu:
    """The CPU provider."""

    name = "cpu"
    settings: Mapping[str, str] = RECORD
    left_out: Sequence[str] = ("ConstantFolding", "TransposeOptimizer")
    captures = False
    hint = REBUILD

    def __init__(self) -> None:
        self.memory = HostMemory()

    def provider(self, captures: bool) -> tuple[str, dict[str, str]]:
        return "CPUExecutionProvider", {}

    def close(self) -> None: ...


PROVIDER = "CUDAExecutionProvider"

_CAPTURES_SAFELY = (1, 31)
"""Before this version, each launch of a captured GatherND read freed host memory:
https://github.com/microsoft/onnxruntime/pull/32120."""


class Cuda:
    """CUDA's current GPU. All sessions and copies share one stream."""

    name = "cuda"
    hint = "see what `nvidia-smi` says: each graph takes a copy of the weights on the GPU"
    # Weights take the memory that they need, beside the arena and not in it. Shapes and ranges are
    # folded: what a GPU has calculated comes too late for kernels that read it from the host.
    settings: Mapping[str, str] = RECORD | {
        "session.use_device_allocator_for_initializers": "1",
        "optimization.constant_folding_max_output_size_in_bytes": str(1 << 16),
    }
    left_out: Sequence[str] = ("TransposeOptimizer",)

    def __init__(self) -> None:
        """Raise UserError where ONNX Runtime or CUDA has no GPU."""
        require_cuda_provider()
        with needs_extra("gpu"):
            importlib.import_module("cuda.bindings.runtime")
        self.captures = _captures_safely()
        self.memory = CudaMemory()
        self.close = self.memory.device.close

    def provider(self, captures: bool) -> tuple[str, dict[str, str]]:
        """One stream: sessions and copies never wait for each other.

        The arena grows by what is needed instead of doubling: caches and weights fill the memory.
        """
        return PROVIDER, {
            "device_id": "0",
            "user_compute_stream": str(self.memory.device.stream),
            "arena_extend_strategy": "kSameAsRequested",
            "enable_cuda_graph": str(int(captures)),
        }


def require_cuda_provider() -> None:
    """Raise UserError for an ONNX Runtime that was made only for the CPU."""
    with needs_extra("gpu"):
        import onnxruntime as ort
    if PROVIDER not in ort.get_available_providers():
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
