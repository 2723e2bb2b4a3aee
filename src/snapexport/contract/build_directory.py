"""Opens a build on disk, and checks its files against its manifest.

Derives the inputs and outputs of the graphs from the manifest's facts. A backend compares those
that the manifest lists with a graph's own when it loads it. So facts and graphs agree, and no
memory is allocated by a number that only the manifest has.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from snapexport.contract import names
from snapexport.contract.exclusions import require_compatible
from snapexport.contract.graph_kind import GraphKind
from snapexport.contract.graph_kinds import BASELINE, GraphOf, graph_of, kinds_of, tensors
from snapexport.contract.graph_specs import GraphFacts, Shape, Specs
from snapexport.contract.manifest import (
    REBUILD,
    WEIGHTS,
    GraphEntry,
    GraphName,
    Manifest,
    TensorSpec,
    TraceName,
    WeightFile,
)
from snapexport.errors import UserError
from snapexport.files.dtypes import BY_SAFETENSORS
from snapexport.files.safetensors import TensorSpan, find_span, header_sha256, read_header
from snapexport.files.untrusted import BY_ITSELF, GRAPH_BYTES, blob_of
from snapexport.files.whole import sha256_of


@dataclass(frozen=True)
class Build:
    """A complete and unchanged build. Only `open` makes one."""

    directory: Path
    manifest: Manifest

    @classmethod
    def open(cls, directory: Path | str) -> "Build":
        """Check manifest, graphs (by hash) and weights (by size and header). Raises UserError.

        Weights may be many gigabytes; `verify_weights` hashes them.
        """
        build = cls(Path(directory), Manifest.read(Path(directory)))
        require_interface(build.manifest)
        for rank in build.ranks:
            for entry in rank.files_of_graphs():
                rank._check_graph(entry)
        for weights in build.manifest.weights:
            build._check_weights(weights)
        for rank in build.ranks:
            rank._require_known_weights()
        return build

    @property
    def ranks(self) -> list["Build"]:
        """Each rank's part, as a build of its own; the build itself if there is one rank."""
        if self.manifest.tensor_parallel == 1:
            return [self]
        return [self.of_rank(rank) for rank in range(self.manifest.tensor_parallel)]

    def of_rank(self, rank: int) -> "Build":
        """One rank's part."""
        folder = self.manifest.folders[rank]
        return Build(self.directory / folder, self.manifest.of_rank(rank))

    def require_run(self, *, baseline: bool = False, **options: object) -> None:
        """Raise UserError for options of a run that exclude each other, or do not fit this build.

        options: by field, of `LLM`, `open_executor` or a command; command: that command's name.
        """
        manifest = self.manifest
        of_build = {
            "tensor_parallel": manifest.tensor_parallel,
            "target": manifest.target,
            "dtype": manifest.dtype,
            "held_in": manifest.cache_dtype,
            "holds_fp4": manifest.holds_fp4,
            "compresses": manifest.geometry.compresses,
            "single_shot": manifest.single_shot,
            "graphs": frozenset(manifest.graphs),
            "has_baseline": self.has_baseline or not manifest.geometry.compresses,
            "has_engines": bool(manifest.engines),
        }
        require_compatible({**options, **of_build, "run_baseline": baseline})

    def files_of_graphs(self) -> Iterator[GraphEntry]:
        """Graphs, traces and segments."""
        yield from self.manifest.graphs.values()
        yield from self.manifest.traces.values()
        for segments in self.manifest.segments.values():
            yield from segments

    def graph(self, name: GraphName) -> Path:
        """Path of a graph that this build has. All ranks have the same: it is the first one's."""
        return self.directory / self.manifest.folders[0] / self.manifest.graphs[name].file

    def trace(self, name: TraceName) -> Path:
        """Path of a trace that this build has."""
        return self.directory / self.manifest.traces[name].file

    @property
    def has_baseline(self) -> bool:
        return f"{BASELINE}decode" in self.manifest.graphs

    def shared_weights(self, graphs: Iterable[GraphName]) -> list[tuple[TensorSpec, TensorSpan]]:
        """The weights that these graphs take as inputs, each once, and where they are.

        Empty for a build whose graphs hold their weights. Raises UserError if a file is invalid, or
        lacks a weight of that type and shape.
        """
        if not self.manifest.graph_options.share_weights:
            return []
        files = [self.directory / weights.file for weights in self.manifest.weights]
        spans = {name: span for file in files for name, span in read_header(file).items()}
        inputs = (spec for name in graphs for spec in weight_inputs(self.manifest, name))
        wanted = {spec.name: spec for spec in inputs}
        return [(spec, _span_of(spec, spans)) for spec in wanted.values()]

    def verify_weights(self) -> list[str]:
        """Hash every weight file that has a recorded hash. Raises UserError for a difference.

        Returns the files without a recorded hash, which are not read.
        """
        for weights in self.manifest.weights:
            if weights.sha256 not in (None, sha256_of(self.directory / weights.file)):
                raise UserError(f"{weights.file} was changed after the build", REBUILD)
        return [weights.file for weights in self.manifest.weights if weights.sha256 is None]

    def _check_graph(self, entry: GraphEntry) -> None:
        path = self.file(entry.file)
        if path.stat().st_size > GRAPH_BYTES:
            raise UserError(f"{path} is larger than any ONNX file, {GRAPH_BYTES} bytes", REBUILD)
        if sha256_of(path) != entry.sha256:
            raise UserError(f"{path} was changed after the build", REBUILD)

    def _check_weights(self, weights: WeightFile) -> None:
        path = self.file(weights.file)
        if path.stat().st_size != weights.size:
            raise UserError(
                f"{path} has {path.stat().st_size} bytes, the manifest says {weights.size}", REBUILD
            )
        if header_sha256(path) != weights.header_sha256:
            raise UserError(f"{path} was changed after the build", REBUILD)

    def _require_known_weights(self) -> None:
        """A graph may use any file of the folder, so the manifest has to list each, once."""
        known = {weights.file for weights in self.manifest.weights}
        if len(known) < len(self.manifest.weights):
            raise UserError(f"the manifest of {self.directory} lists a weight file twice", REBUILD)
        for path in (self.directory / WEIGHTS).iterdir():
            if f"{WEIGHTS}/{path.name}" not in known:
                raise UserError(f"{path} is not in the manifest", REBUILD)

    def file(self, name: str) -> Path:
        """Path of a regular file that the manifest names. Raises UserError.

        No link leads to it but one of the Hub's cache.
        """
        path = self.directory
        for part in Path(name).parts:
            path /= part
            if path.is_symlink() and not blob_of(path):
                raise UserError(f"{path} is a symbolic link", BY_ITSELF)
        if not path.exists():
            again = "download the build again" if path.is_symlink() else REBUILD
            raise UserError(f"{path} is missing", again)
        if not path.is_file():
            raise UserError(f"{path} is not a regular file", REBUILD)
        return path


def _span_of(spec: TensorSpec, spans: Mapping[str, TensorSpan]) -> TensorSpan:
    span = find_span(spans, spec.name)
    found = span and (BY_SAFETENSORS[span.dtype].numpy, list(span.shape))
    if span is None or found != (spec.dtype, spec.shape):
        raise UserError(
            f"the build has {found} for the weight '{spec.name}', its graphs want "
            f"{(spec.dtype, spec.shape)}",
            REBUILD,
        )
    return span


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
        if entry.file != f"{name}.onnx":
            raise UserError(
                f"the manifest names {entry.file!r:.200} in place of {name}.onnx", REBUILD
            )
        _compare(name, "inputs", own, inputs, {})
        _compare(name, "outputs", entry.outputs, outputs, kind.optional(facts))


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
                f"the manifest's {kind} of {graph} have {_spell(given)} for {name!r:.200}, its "
                f"geometry wants {_spell(expected)}",
                REBUILD,
            )


def _spell(spec: tuple[str, Shape] | None) -> str:
    return f"{spec[0]:.20} {list(spec[1])!r:.100}" if spec else "nothing"
