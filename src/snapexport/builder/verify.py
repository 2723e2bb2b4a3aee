"""Reads every byte of a build: hashes, and what the graphs say of themselves.

The graphs' inputs, outputs and references to weights are compared with the manifest's, which needs
the package onnx.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from snapexport.contract.build_directory import Build
from snapexport.contract.engines import PackedGraphs
from snapexport.contract.manifest import DIGEST, MANIFEST, REBUILD, GraphEntry
from snapexport.errors import UserError, first_line
from snapexport.files.safetensors import TensorSpan, find_span, read_header

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto


Weights = Mapping[str, Mapping[str, TensorSpan]]
"""{file: {tensor: its place}}."""


@dataclass(frozen=True)
class Verified:
    """A report of what was compared.

    unhashed_weights: files without a recorded hash. compared_graphs: False without the package
    onnx. other_files: files in the directory that the manifest doesn't list, such as config.json
    and tokenizer.json.
    """

    unhashed_weights: list[str]
    compared_graphs: bool
    other_files: list[str]


def verify(build: Build) -> Verified:
    """Raise UserError for a byte, or a fact of a graph, that the manifest does not record.

    TensorRT's engines are the caller's to verify.
    """
    unhashed = build.verify_weights()
    if packed := PackedGraphs.of(build.directory):
        packed.verify(build.directory)
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError:
        return Verified(unhashed, False, _other_files(build))
    for rank in build.ranks:
        weights = _spans(rank)
        for entry in rank.files_of_graphs():
            _require_graph(rank, entry, weights)
    return Verified(unhashed, True, _other_files(build))


def _spans(build: Build) -> Weights:
    """The tensors of each weight file, by name."""
    files = [weights.file for weights in build.manifest.weights]
    return {file: read_header(build.file(file)) for file in files}


def _require_graph(build: Build, entry: GraphEntry, weights: Weights) -> None:
    model = load_graph(build.file(entry.file))
    for kind, listed, values in (
        ("inputs", entry.inputs, model.graph.input),
        ("outputs", entry.outputs, model.graph.output),
    ):
        names = [value.name for value in values]
        if sorted(names) != sorted(spec.name for spec in listed):
            raise UserError(f"{entry.file} has other {kind} than the manifest says", REBUILD)
        shapes = {spec.name: spec.shape for spec in listed}
        for value in values:
            dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            if dims != shapes[value.name]:
                raise UserError(
                    f"{entry.file} has {dims!r:.100} for {value.name!r:.200}, the manifest says "
                    f"{shapes[value.name]!r:.100}",
                    REBUILD,
                )
    for tensor in _tensors(model.graph):
        _require_weight(entry.file, tensor, weights)


def load_graph(path: Path) -> "ModelProto":
    """The graph without its weights. Raises UserError."""
    import onnx

    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # of protobuf
        raise UserError(f"{path} is not an ONNX file: {first_line(error)}", REBUILD) from None


def _tensors(graph: "GraphProto") -> Iterator["TensorProto"]:
    """All tensors of a graph and of the graphs within it."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def _require_weight(file: str, tensor: "TensorProto", weights: Weights) -> None:
    """Require that data outside of a graph is the tensor of its name in one of the weight files."""
    if not tensor.external_data and not tensor.data_location:
        return
    listed = {entry.key: entry.value for entry in tensor.external_data}
    place = listed.get("location", "")
    if place not in weights or str(PurePosixPath(place)) != place:
        raise UserError(
            f"{file} reads {tensor.name!r:.200} from {place!r:.200}, which is not a weight file of "
            "the manifest",
            REBUILD,
        )
    span = find_span(weights[place], tensor.name)
    given = listed.get("offset", "0"), listed.get("length", "")
    if span is None or given != (str(span.offset), str(span.nbytes)):
        raise UserError(
            f"{file} reads bytes of {place} for {tensor.name!r:.200} that are not this weight",
            REBUILD,
        )


def _other_files(build: Build) -> list[str]:
    manifest = build.manifest
    known = {MANIFEST, DIGEST}
    places = (PurePosixPath(folder) for folder in manifest.folders)
    files = [entry.file for entry in build.files_of_graphs()]
    known |= {(place / file).as_posix() for place in places for file in files}
    known |= {weights.file for weights in manifest.weights}
    for engine in manifest.engines.values():
        known |= {graph.file for graph in engine.graphs.values()}
        known |= {engine.plugins.file} if engine.plugins else set()
    if packed := PackedGraphs.of(build.directory):
        known.update(packed.files)
    found = (path for path in build.directory.rglob("*") if not path.is_dir() or path.is_symlink())
    names = sorted(path.relative_to(build.directory).as_posix() for path in found)
    return [name for name in names if name not in known]
