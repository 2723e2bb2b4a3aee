"""Records of what `snapexport engine` adds to a build: TensorRT engines, and packed weights.

    engines/NAME/decode.engine         a TensorRT engine, recorded in manifest.json
    engines/onnxruntime/packed.json    the record of packed weights, for one processor's kernels
    engines/onnxruntime/decode.onnx    a graph, as ONNX Runtime optimized it
    engines/onnxruntime/weights.bin    the weights of all of them, as they are and rearranged

Sessions map rearranged weights from the file; without it each makes a copy of its own.
"""

import hashlib
import platform
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    NonNegativeInt,
    StringConstraints,
    ValidationError,
)

from snapexport.errors import UserError
from snapexport.files.untrusted import MANIFEST_BYTES, read_bytes
from snapexport.files.whole import sha256_of

Hardware = Literal["none", "ampere_plus", "same_compute_capability"]
"""GPUs that an engine runs on: the same model as the builder's (none), every GPU from Ampere on, or
all GPUs of one compute capability. TensorRT's HardwareCompatibilityLevel."""

DEFAULT_LEVEL = 3
"""TensorRT's default optimization level, 0 to 5: higher ones search longer for fast kernels."""

ENGINES = "engines"
"""A build's folder of engines."""
FOLDER = "onnxruntime"
RECORD = "packed.json"
WEIGHTS_FILE = "weights.bin"
AGAIN = "run `snapexport engine --overwrite` on the build again, or remove its folder engines/"

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.+-]{1,100}$")]
Title = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.+ ()/@-]{1,100}$")]
"""Texts of a manifest that reach a Dockerfile, a README or a terminal: no line break, no markup."""


def _require_inside(file: str) -> str:
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{file!r:.200} is outside of the build")
    return file


FileName = Annotated[
    str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$"), AfterValidator(_require_inside)
]
"""A path below the build."""


class Strict(BaseModel):
    """A part of the manifest. Refuses unknown keys and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class EngineFile(Strict):
    """A file below the build. size in bytes."""

    file: FileName
    size: NonNegativeInt
    sha256: str


class GraphEngine(EngineFile):
    """One graph's engine. device_memory: bytes of its activations, allocated while it runs."""

    device_memory: NonNegativeInt


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


class PackedGraph(EngineFile):
    """One graph's file. source: SHA-256 of the build's graph that it was made of."""

    source: str


class PackedGraphs(Strict):
    """A record of packed graphs: their files, ONNX Runtime's version and the processor."""

    version: Word
    processor: Word
    graphs: dict[Word, PackedGraph]
    weights: EngineFile

    @classmethod
    def of(cls, build: Path) -> "PackedGraphs | None":
        """The record of a build; None: nothing was packed. Raises UserError for a broken one."""
        file = folder(build) / RECORD
        if not file.is_file():
            return None
        try:
            return cls.model_validate_json(read_bytes(file, MANIFEST_BYTES, AGAIN, links=False))
        except ValidationError:
            raise UserError(f"{file} is not valid", AGAIN) from None

    def file(self, build: Path, graph: str, source: str, version: str) -> Path | None:
        """The packed graph, if this ONNX Runtime on this processor can run it.

        source: SHA-256 of the build's graph. Raises UserError for files that are not those of the
        record.
        """
        found = self.graphs.get(graph)
        if found is None or found.source != source:
            return None
        if (self.version, self.processor) != (version, processor()):
            return None
        _require_size(build, self.weights)
        _require_bytes(build, found)
        return build / found.file

    @property
    def files(self) -> list[str]:
        """All of them, with the record."""
        own = [one.file for one in (*self.graphs.values(), self.weights)]
        return [f"{ENGINES}/{FOLDER}/{RECORD}", *own]

    def verify(self, build: Path) -> None:
        """Raise UserError for a byte that is not as it was packed."""
        for one in (*self.graphs.values(), self.weights):
            _require_bytes(build, one)


def _require_size(build: Path, one: EngineFile) -> None:
    path = build / one.file
    if not path.is_file() or path.stat().st_size != one.size:
        raise UserError(f"{path} is not the file that was packed", AGAIN)


def _require_bytes(build: Path, one: EngineFile) -> None:
    _require_size(build, one)
    if sha256_of(build / one.file) != one.sha256:
        raise UserError(f"{build / one.file} is not the file that was packed", AGAIN)


def folder(build: Path) -> Path:
    """Where a build's packed graphs are."""
    return build / ENGINES / FOLDER


@cache
def processor() -> str:
    """This processor's abilities, by which kernels are chosen, as a short hash."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    text = f"{platform.machine()} {platform.processor()} {flags}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
