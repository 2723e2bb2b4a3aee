"""The manifest's records of TensorRT engines: what built them, for which GPUs, and their files."""

from typing import Literal, get_args

from snapexport.contract.strict import Strict

Hardware = Literal["none", "ampere_plus", "same_compute_capability"]
"""Which GPUs an engine runs on: those of one architecture and core count alike, every one from
Ampere on, or all of one compute capability (TensorRT's HardwareCompatibilityLevel)."""
HARDWARE: tuple[Hardware, ...] = get_args(Hardware)

DEFAULT_LEVEL = 3
"""TensorRT's own default of how long it searches for faster kernels, of 0 to 5."""

ENGINES = "engines"
"""The folder of a build that holds them."""


class EngineFile(Strict):
    """A file below the build. size in bytes."""

    file: str
    size: int
    sha256: str


class GraphEngine(EngineFile):
    """One graph's engine. device_memory: bytes of its activations, allocated while it runs."""

    device_memory: int


class EngineEntry(Strict):
    """The engines of one kind of GPU.

    tensorrt: the version that built them. compute_capability: as "9.0", of the GPU that they were
    built on. stripped: without weights, which are refitted from the graphs when they are loaded.
    refit: other weights may be put into them. optimization_level, workspace (bytes; None: all
    there is): as they were built. plugins: the library that they were built with, if there is one.
    graphs: each graph's engine, under the names of the manifest's `graphs`.
    """

    tensorrt: str
    compute_capability: str
    gpu: str
    hardware_compatibility: Hardware
    version_compatible: bool
    stripped: bool
    refit: bool = False
    optimization_level: int = DEFAULT_LEVEL
    workspace: int | None = None
    plugins: EngineFile | None
    graphs: dict[str, GraphEngine]

    @property
    def needs_plugins(self) -> bool:
        """Whether the library has to be loaded first: version-compatible engines contain it."""
        return self.plugins is not None and not self.version_compatible
