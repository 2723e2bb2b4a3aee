"""Graphs of a build whose weights lie on the disk as one processor's kernels read them.

    engines/onnxruntime/packed.json    this record
    engines/onnxruntime/decode.onnx    a graph, as ONNX Runtime optimized it
    engines/onnxruntime/weights.bin    the weights of all of them, as they are and rearranged

`snapexport engine` writes them. Sessions map rearranged weights from the file, where each would
make a copy of its own.
"""

import hashlib
import platform
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from snapexport.contract.engines import ENGINES, EngineFile, Strict, Word
from snapexport.contract.manifest import GraphName, Manifest
from snapexport.errors import UserError
from snapexport.files.untrusted import MANIFEST_BYTES, read_bytes
from snapexport.files.whole import sha256_of

FOLDER = "onnxruntime"
RECORD = "packed.json"
WEIGHTS_FILE = "weights.bin"
AGAIN = "run `snapexport engine --overwrite` on the build again, or remove its folder engines/"


class PackedGraph(EngineFile):
    """One graph's file. source: SHA-256 of the build's graph that it was made of."""

    source: str


class PackedGraphs(Strict):
    """What was packed, by which ONNX Runtime, for which processor."""

    version: Word
    processor: Word
    graphs: dict[GraphName, PackedGraph]
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

    def file(self, build: Path, manifest: Manifest, graph: GraphName, version: str) -> Path | None:
        """The packed graph, if this ONNX Runtime on this processor can run it.

        Raises UserError for files that are not those of the record.
        """
        found = self.graphs.get(graph)
        if found is None or (self.version, self.processor) != (version, processor()):
            return None
        if found.source != manifest.graphs[graph].sha256:
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
