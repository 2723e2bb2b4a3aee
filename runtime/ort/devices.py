"""Defines where ONNX Runtime runs graphs, and implements the CPU.

Knows no graph and no batch slot. The GPU is cuda.py's.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from snapexport.contract.manifest import REBUILD
from snapexport.runtime.engine.backend import Memory
from snapexport.runtime.engine.host_memory import HostMemory

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
