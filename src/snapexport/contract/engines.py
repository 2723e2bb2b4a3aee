"""The manifest's records of TensorRT engines: their builder, their GPUs and their files."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

Hardware = Literal["none", "ampere_plus", "same_compute_capability"]
"""GPUs that an engine runs on: the same model as the builder's (none), every GPU from Ampere on, or
all GPUs of one compute capability. TensorRT's HardwareCompatibilityLevel."""

DEFAULT_LEVEL = 3
"""TensorRT's default optimization level, 0 to 5: higher ones search longer for fast kernels."""

ENGINES = "engines"
"""A build's folder of engines."""


Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.+-]{1,100}$")]
Title = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.+ ()/@-]{1,100}$")]
"""Texts of a manifest that reach a Dockerfile, a README or a terminal: no line break, no markup."""
FileName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$")]


class Strict(BaseModel):
    """A part of the manifest. Refuses unknown keys and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class EngineFile(Strict):
    """A file below the build. size in bytes."""

    file: FileName
    size: int
    sha256: str


class GraphEngine(EngineFile):
    """One graph's engine. device_memory: bytes of its activations, allocated while it runs."""

    device_memory: int


class EngineEntry(Strict):
    """The engines of one kind of GPU.

    version: of the library that built them. compute_capabilities: of the GPUs that can run them,
    such as "9.0". gpu: the one that built them; None: they were built ahead of time, on any
    machine. stripped: they hold no weights; loading refits these from the graphs. refit: they take
    other weights. optimization_level, workspace (bytes; None: no limit): options of their build.
    plugins: the plugin library of their build. graphs: graph name -> engine.
    """

    version: Word
    compute_capabilities: list[Word]
    gpu: Title | None
    hardware_compatibility: Hardware
    version_compatible: bool
    stripped: bool
    refit: bool = False
    optimization_level: int = DEFAULT_LEVEL
    workspace: int | None = None
    plugins: EngineFile | None
    graphs: dict[Word, GraphEngine]

    @property
    def needs_plugins(self) -> bool:
        """Whether to load the library before the engine. Version-compatible engines contain it."""
        return self.plugins is not None and not self.version_compatible
