"""Checks the segments of a manifest's graphs: what they exchange, and that nothing is missing.

A segment's tensors are the graph's own, or those between segments (`contract/names.py`), each of
which an earlier segment has left.
"""

from collections.abc import Iterable

from snapexport.contract import names
from snapexport.contract.manifest import REBUILD, GraphEntry, Manifest, TensorSpec
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError

_Kind = tuple[str, tuple[int, ...]]


def require_segments(manifest: Manifest) -> None:
    """Raise UserError for segments that are not those of the manifest's graphs."""
    is_cut = manifest.tensor_parallel > 1 and not capabilities(manifest.target).compiled
    if bool(manifest.segments) != is_cut or manifest.segments.keys() - manifest.graphs.keys():
        raise UserError("the manifest has segments too many, or too few", REBUILD)
    for name, segments in manifest.segments.items():
        for index, segment in enumerate(segments):
            if segment.file != f"{name}-{index}.onnx":
                raise UserError(f"the manifest names {segment.file!r:.200} as a segment", REBUILD)
        _require_chain(manifest.graphs[name], segments, manifest.tensor_parallel)


def _require_chain(graph: GraphEntry, segments: Iterable[GraphEntry], ranks: int) -> None:
    known, outputs = _kinds(graph.inputs), _kinds(graph.outputs)
    missing = dict(outputs)
    for segment in segments:
        for name, kind in _kinds(segment.inputs).items():
            if known.get(name) != kind:
                raise _unknown(segment, name)
        for name, kind in _kinds(segment.outputs).items():
            if name in outputs:
                if missing.pop(name, None) != kind:
                    raise _unknown(segment, name)
            elif name in known or not names.is_between(name):
                raise _unknown(segment, name)
            elif gathered := names.gathered_of(name):
                dtype, (rows, *others) = kind
                known[gathered] = (dtype, (ranks * rows, *others))
            else:
                known[name] = kind
    if missing:
        raise UserError(f"no segment has the output {next(iter(missing))!r:.200}", REBUILD)


def _kinds(specs: Iterable[TensorSpec]) -> dict[str, _Kind]:
    return {spec.name: (spec.dtype, tuple(spec.shape)) for spec in specs}


def _unknown(segment: GraphEntry, name: str) -> UserError:
    return UserError(
        f"{segment.file} has the tensor {name!r:.200}, which its graph has not", REBUILD
    )
