"""Derives the inputs and outputs of a build's graphs, and compares them with the manifest's.

A backend compares the manifest's with the graph's own when it loads it. So facts and graphs agree,
and no memory is allocated by a number that only the manifest has.
"""

from collections.abc import Iterator, Mapping

from snapexport.contract import names
from snapexport.contract.graph_kind import GraphKind
from snapexport.contract.graph_kinds import (
    GraphOf,
    graph_of,
    kinds_of,
    tensors,
    trace_tensors,
)
from snapexport.contract.graph_specs import GraphFacts, Shape, Specs
from snapexport.contract.manifest import REBUILD, GraphEntry, GraphName, Manifest, TensorSpec
from snapexport.contract.targets import capabilities
from snapexport.errors import UserError


def require_interface(manifest: Manifest) -> None:
    """Raise UserError for graphs that are missing, unexpected, or not those of the facts."""
    options = manifest.graph_options
    if not manifest.geometry.compresses and options != options.of_full_cache():
        raise UserError("the manifest has graph options that the full cache lacks", REBUILD)
    found, wanted = set(manifest.graphs), set(_graph_names(manifest))
    if missing := sorted(wanted - found):
        raise UserError(f"the manifest lacks the graph {missing[0]}", REBUILD)
    if unexpected := sorted(found - wanted):
        raise UserError(f"the manifest lists an unexpected graph {unexpected[0]}", REBUILD)
    for name, entry in manifest.graphs.items():
        kind, facts = _facts(manifest, name)
        inputs, outputs = tensors(kind, facts)
        weights = {spec.name for spec in weight_inputs(manifest, name)}
        own = [spec for spec in entry.inputs if spec.name not in weights]
        _require_file(entry, f"{name}.onnx")
        _compare(name, "inputs", own, inputs, {})
        _compare(name, "outputs", entry.outputs, outputs, kind.optional(facts))
    for trace, entry in manifest.traces.items():
        _require_file(entry, f"{trace}.trace.onnx")
        facts = GraphFacts(manifest, hidden_size=_hidden_size(manifest))
        inputs, outputs = trace_tensors(trace, facts)
        _compare(f"{trace}.trace", "inputs", entry.inputs, inputs, {})
        _compare(f"{trace}.trace", "outputs", entry.outputs, outputs, {})
    if manifest.traces and set(manifest.traces) != {"prefill", "decode"}:
        raise UserError("the manifest has one trace without the other", REBUILD)
    _require_segments(manifest)


def weight_inputs(manifest: Manifest, name: GraphName) -> list[TensorSpec]:
    """The inputs that are shared weights: what a graph takes beyond the inputs of its kind.

    `Build.shared_weights` compares them with the weight files, and refuses others.
    """
    kind, facts = _facts(manifest, name)
    if not (manifest.graph_options.share_weights and kind.has_weights):
        return []
    inputs, _ = tensors(kind, facts)
    return [spec for spec in manifest.graphs[name].inputs if spec.name not in inputs]


def graph_specs(manifest: Manifest) -> Iterator[tuple[GraphName, Specs, Specs]]:
    """(name, inputs, outputs) of the graphs of a build that is not made yet, without weights.

    manifest: without graphs; then those for smaller batches and capacities are left out.
    """
    for name in _graph_names(manifest):
        kind, facts = _facts(manifest, name)
        yield name, *tensors(kind, facts)


def in_place(name: GraphName, graph: GraphEntry) -> dict[str, str]:
    """{present cache: the input whose buffer it has to share}."""
    if not graph_of(name).kind.writes_in_place:
        return {}
    inputs = {spec.name for spec in graph.inputs}
    outputs = [spec.name for spec in graph.outputs if names.is_present(spec.name)]
    pairs = {present: names.past_of(present) for present in outputs}
    return {present: past for present, past in pairs.items() if past in inputs}


def _facts(manifest: Manifest, name: GraphName) -> tuple[GraphKind, GraphFacts]:
    graph = graph_of(name)
    size = {graph.kind.sized_by: graph.size} if graph.size else {}
    hidden_size = _hidden_size(manifest)
    return graph.kind, GraphFacts(
        manifest,
        **size,
        tokens=graph.tokens,
        is_baseline=graph.is_baseline,
        hidden_size=hidden_size,
    )


def _hidden_size(manifest: Manifest) -> int:
    """The manifest's facts have none: every graph has the one that decode has."""
    decode = manifest.graphs.get("decode")
    shapes = {spec.name: spec.shape for spec in decode.outputs} if decode else {}
    *_, width = shapes.get(names.HIDDEN_STATES) or [0]
    return width


def _graph_names(manifest: Manifest) -> Iterator[GraphName]:
    """The names that the facts want; those of decode and prefill say which sizes there are."""
    sizes = {
        "": [],
        "batch": [slots for slots in manifest.decode_graphs() if slots < manifest.batch],
        "capacity": [n for n in manifest.prefill_graphs() if n < manifest.geometry.L_max],
    }
    has_baseline = any(graph_of(name).is_baseline for name in manifest.graphs)
    kinds = kinds_of(manifest.geometry, manifest.graph_options, manifest.prefill_chunk)
    for kind in kinds.values():
        for size in (0, *sizes[kind.sized_by]):
            yield GraphOf(kind, size).name
            if has_baseline and kind.has_baseline:
                yield GraphOf(kind, size, is_baseline=True).name
            for tokens in manifest.chunks[:-1] if kind.shortens else ():
                yield GraphOf(kind, size, tokens).name


def _require_segments(manifest: Manifest) -> None:
    """Compare the segments of graphs that are cut: each reads what the graph or earlier ones give.

    Segments run in ONNX Runtime, in builds of several ranks.
    """
    is_cut = manifest.tensor_parallel > 1 and not capabilities(manifest.target).compiled
    if bool(manifest.segments) != is_cut or manifest.segments.keys() - manifest.graphs.keys():
        raise UserError("the manifest has too many segments, or too few", REBUILD)
    for name, segments in manifest.segments.items():
        graph = manifest.graphs[name]
        known = {spec.name for spec in graph.inputs}
        for index, segment in enumerate(segments):
            _require_file(segment, f"{name}-{index}.onnx")
            if missing := {spec.name for spec in segment.inputs} - known:
                what = f"{segment.file} reads {missing.pop()!r:.200}, which is not there"
                raise UserError(f"the manifest's segment {what}", REBUILD)
            made = {spec.name for spec in segment.outputs}
            known |= made | {names.gathered_of(one) or one for one in made}
        if missing := {spec.name for spec in graph.outputs} - known:
            raise UserError(f"no segment has the output {missing.pop()!r:.200}", REBUILD)


def _require_file(entry: GraphEntry, file: str) -> None:
    if entry.file != file:
        raise UserError(f"the manifest names {entry.file!r:.200} in place of {file}", REBUILD)


def _compare(
    graph: GraphName,
    kind: str,
    listed: list[TensorSpec],
    wanted: Specs,
    optional: Specs,
) -> None:
    """optional: tensors that may be missing."""
    found: Mapping[str, tuple[str, Shape]] = {
        spec.name: (spec.dtype, tuple(spec.shape)) for spec in listed
    }
    if len(found) < len(listed):
        raise UserError(f"the manifest names one of {graph}'s {kind} twice", REBUILD)
    for name in wanted.keys() | found.keys():
        expected = wanted.get(name, optional.get(name))
        given = found.get(name)
        if expected != given and not (given is None and name in optional):
            raise UserError(
                f"the manifest's {kind} of {graph} have {_spelled(given)} for {name!r:.200}, its "
                f"geometry wants {_spelled(expected)}",
                REBUILD,
            )


def _spelled(spec: tuple[str, Shape] | None) -> str:
    return f"{spec[0]:.20} {list(spec[1])!r:.100}" if spec else "nothing"
