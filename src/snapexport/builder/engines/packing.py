"""Packs a build's weights for this processor: ONNX Runtime rearranges them once, onto the disk.

ONNX Runtime saves each graph with weights of its own. What several graphs have alike goes into one
file once, so that their sessions share its pages.
"""

import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import onnx

from snapexport.builder.progress import Progress
from snapexport.contract.build_directory import Build
from snapexport.contract.engines import (
    ENGINES,
    FOLDER,
    RECORD,
    WEIGHTS_FILE,
    EngineFile,
    PackedGraph,
    PackedGraphs,
    folder,
    processor,
)
from snapexport.contract.manifest import GraphName
from snapexport.errors import UserError
from snapexport.files.whole import locked, sha256_of, write_whole

_PAGE = 4096
_PREPACKED = "prepacked_"
_WITHOUT_WEIGHTS = "compress"


def require_packable(build: Build) -> None:
    """Raise UserError for a build that ONNX Runtime can't pack."""
    if build.manifest.tensor_parallel > 1:
        raise UserError(
            f"{build.directory} has several ranks, whose graphs are not packed",
            "run it as it is",
        )
    if build.manifest.graph_options.share_weights:
        raise UserError(
            f"{build.directory} takes its matrices as inputs: there is nothing to pack",
            "build it without --share-weights",
        )


def pack(
    build: Build, graphs: Iterable[GraphName], *, overwrite: bool, progress: Progress
) -> PackedGraphs:
    """Write packed graphs, and their record. Raises UserError."""
    require_packable(build)
    target = folder(build.directory)
    if (target / RECORD).exists() and not overwrite:
        raise UserError(f"{target} exists already", "pass --overwrite to pack the weights again")
    target.parent.mkdir(exist_ok=True)
    try:
        with locked(target.parent):
            return _write_packed(build, graphs, target, progress)
    except BlockingIOError:
        raise UserError(
            f"another process builds engines in {target.parent}", "wait until it is done"
        ) from None


def _write_packed(
    build: Build, graphs: Iterable[GraphName], target: Path, progress: Progress
) -> PackedGraphs:
    from snapexport.runtime.ort.session import version

    # Without its record a folder is not used: that is written last, and removed first.
    (target / RECORD).unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    names = [name for name in graphs if name != _WITHOUT_WEIGHTS]
    with (target / WEIGHTS_FILE).open("xb") as out:
        pool = _Pool(out, progress)
        for name in names:
            progress.stage(f"packing {name}")
            _pack_graph(build.graph(name), target / f"{name}.onnx", pool)
    record = PackedGraphs(
        version=version(),
        processor=processor(),
        graphs={
            name: PackedGraph(
                **_entry(target / f"{name}.onnx"), source=build.manifest.graphs[name].sha256
            )
            for name in names
        },
        weights=EngineFile(**_entry(target / WEIGHTS_FILE)),
    )
    write_whole(target / RECORD, record.model_dump_json(indent=2).encode())
    return record


def _entry(path: Path) -> dict[str, Any]:
    place = f"{ENGINES}/{FOLDER}/{path.name}"
    return {"file": place, "size": path.stat().st_size, "sha256": sha256_of(path)}


def _pack_graph(source: Path, target: Path, pool: "_Pool") -> None:
    """Let ONNX Runtime save a graph, and move its weights into the pool."""
    from snapexport.runtime.ort.session import saved_optimized

    saved = target.with_name(f"saved-{target.name}")
    weights = saved.with_name(saved.name + ".bin")
    saved_optimized(source, saved, weights.name)
    model = onnx.load(saved, load_external_data=False)
    with weights.open("rb") as file:
        for tensor in model.graph.initializer:
            if tensor.external_data:
                pool.move(tensor, file)
    onnx.save(model, target)
    for one in (saved, weights):
        one.unlink(missing_ok=True)


@dataclass
class _Pool:
    """The weights of all graphs. places: offset of each piece, by its digest."""

    out: BinaryIO
    progress: Progress
    places: dict[bytes, int] = field(default_factory=dict)

    def move(self, tensor: onnx.TensorProto, source: BinaryIO) -> None:
        """Write a tensor's bytes, and what was made of them, unless they are there."""
        values = {entry.key: entry.value for entry in tensor.external_data}
        offset = self._place(source, int(values.get("offset", 0)), int(values["length"]))
        moved = {"location": WEIGHTS_FILE, "offset": str(offset), "length": values["length"]}
        for key, value in values.items():
            if key.startswith(_PREPACKED):
                name, _, pieces = value.partition("|")
                moved[key] = f"{name}|" + "|".join(
                    self._piece(source, piece) for piece in pieces.split("|")
                )
        del tensor.external_data[:]
        for key, value in moved.items():
            tensor.external_data.add(key=key, value=value)

    def _piece(self, source: BinaryIO, piece: str) -> str:
        """`offset;length;checksum`, at its new offset."""
        offset, length, checksum = piece.split(";")
        return f"{self._place(source, int(offset), int(length))};{length};{checksum}"

    def _place(self, source: BinaryIO, offset: int, length: int) -> int:
        source.seek(offset)
        data = source.read(length)
        digest = hashlib.sha256(data).digest()
        if digest not in self.places:
            start = -(-self.out.tell() // _PAGE) * _PAGE
            self.out.seek(start)
            self.out.write(data)
            self.progress.written(length)
            self.places[digest] = start
        return self.places[digest]
