"""The stages of a build: checkpoint -> traces -> weights -> graphs -> manifest, a function each.

Knows no operator of any target, and not where the build appears.
"""

import platform
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import version
from itertools import count
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
from tokenizers import Tokenizer

from snapexport.builder.graph_files import Traces, finished_graphs, write_graph
from snapexport.builder.options import BuildOptions
from snapexport.builder.progress import Progress
from snapexport.builder.ranks import place_ranks, write_ranks
from snapexport.builder.resolved import ResolvedBuild
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kinds import graph_of, kinds_of
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.manifest import (
    FORMAT_VERSION,
    WEIGHTS,
    GraphEntry,
    GraphName,
    Manifest,
    TraceName,
    Verified,
)
from snapexport.contract.memory import size, spelled
from snapexport.contract.targets import capabilities
from snapexport.contract.vote import Voter
from snapexport.errors import UserError
from snapexport.exporter import trace
from snapexport.exporter.method import TracedModel
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.trace import link, with_batch
from snapexport.exporter.trace.link import Traced
from snapexport.exporter.trace.marking import Marking
from snapexport.exporter.trace.one_product import join_products
from snapexport.exporter.weights import inputs, shapes
from snapexport.exporter.weights.forms import choice, parts
from snapexport.exporter.weights.forms.parts import Weight
from snapexport.exporter.weights.forms.rounding import Inputs
from snapexport.exporter.weights.joined import separate
from snapexport.exporter.weights.place import PlacedWeights, place
from snapexport.files.dtypes import BY_FLAG
from snapexport.files.tokenizer_file import TOKENIZER
from snapexport.graphs.method import MethodSurgery, Recipe, surgeries
from snapexport.methods import table
from snapexport.methods.method import Method

_RECORDED = ("snapexport", "torch", "transformers", "onnx", "onnxscript", "onnx-graphsurgeon")
_LARGEST_LAYER = size("4GiB")
"""In fp32, of a model that runs before its weights are rounded: a layer is in memory meanwhile."""


def write_into(
    directory: Path, resolved: ResolvedBuild, progress: Progress, verified: Verified | None = None
) -> Build:
    """Write a whole build into an empty directory. verified: what was compared before."""
    _require_tokenizer(resolved)
    traces, placed = trace_model(resolved, directory, progress)
    resolved = _measure(resolved, traces, placed, directory, progress)
    progress.stage("surgery")
    graphs, segments = write_graphs(resolved, traces, directory)
    kept = traces.write(directory) if resolved.options.baseline else {}
    progress.stage("writing the manifest")
    manifest = manifest_of(resolved, graphs, segments, kept, placed, directory)
    manifest.model_copy(update={"verified": verified}).write(directory)
    return Build.open(directory)


def _require_tokenizer(resolved: ResolvedBuild) -> None:
    """Raise UserError where texts will be measured, and the checkpoint has no tokenizer."""
    if _measuring(resolved) and TOKENIZER not in resolved.texts:
        raise UserError(
            f"texts can't be measured: {resolved.options.model} has no {TOKENIZER}",
            "copy it to the checkpoint, or let nothing be measured",
        )


def _measure(
    resolved: ResolvedBuild,
    traces: Traces,
    placed: PlacedWeights,
    directory: Path,
    progress: Progress,
) -> ResolvedBuild:
    """Measure texts where methods do, with graphs of the geometry so far, in which a window votes.

    Their files are taken as if they had been given.
    """
    methods, geometry, options = _measuring(resolved), resolved.geometry, resolved.options.graph
    if not methods:
        return resolved
    progress.stage("measuring texts")
    voted = replace(geometry, vote=replace(geometry.vote, voter=Voter()))
    first = replace(resolved, geometry=voted)
    graphs, _ = write_graphs(first, traces, directory)
    kept = traces.write(directory)
    manifest_of(first, graphs, {}, kept, placed, directory).write(directory)
    build, parts = Build.open(directory), [method.part("measure") for method in methods]
    texts = next(filter(None, (part.texts(build, options) for part in parts)))
    ends = (f"measuring texts: {n} of {len(texts.prompts)}" for n in count(1))
    texts.on_prompt = lambda: progress.stage(next(ends))
    for method, part in zip(methods, parts, strict=True):
        part.require(build)
        content, _, words = part.calibrate(texts, {})
        progress.note(f"{len(texts.prompts)} passages measured for {method.name}: {words}")
        (file := directory / "measured").write_bytes(content)
        options = method.with_measured(options, file)
        geometry = method.reshape(geometry, options, resolved.model, None)
        _stamp(traces, [method.part("surgery")], options)
        file.unlink()
    for entry in (*graphs.values(), *kept.values()):
        (directory / entry.file).unlink()
    return replace(resolved, geometry=geometry)


def _measuring(resolved: ResolvedBuild) -> list[Method]:
    """The methods that measure texts before the build's graphs are made."""
    options, geometry = resolved.options.graph, resolved.geometry
    return [method for method in table.METHODS if method.measures(geometry, options)]


def _stamp(traces: Traces, methods: Iterable[MethodSurgery], options: GraphOptions) -> None:
    for name, model in traces.models.items():
        for method in methods:
            if method.stamped in (None, graph_of(name).kind.name):
                method.stamp(options, model)


def trace_model(
    resolved: ResolvedBuild, directory: Path, progress: Progress
) -> tuple[Traces, PlacedWeights]:
    """Trace all graphs, place the weights in `directory`, and link the traces to them."""
    options = resolved.options
    traced = _trace_kinds(resolved, getattr(torch, BY_FLAG[options.dtype].numpy), progress)
    checkpoint, traced, integers = _quantize(resolved, traced, progress)
    traced, joined = join_products(traced) if _joins(options) else (traced, {})
    every = {tensor for trace in traced.values() for tensor in trace.sources.values()}
    read = separate(every, joined)
    signed = options.holds_integers and capabilities(options.target).signed_integers
    for text in choice.notes(checkpoint.tensors, read, integers, options.dtype, signed=signed):
        progress.note(text)
    progress.stage("placing the weights")
    if options.tensor_parallel > 1:
        count, dtype_name = options.tensor_parallel, options.dtype
        placed, traced = place_ranks(checkpoint, traced, count, dtype_name, directory, progress)
    else:
        placed = place(
            checkpoint,
            read,
            options.dtype,
            directory / WEIGHTS,
            progress.written,
            in_fp32=separate(link.tensors_of(ir.DataType.FLOAT, traced.values()), joined),
            in_fp8=link.tensors_of(ir.DataType.FLOAT8E4M3FN, traced.values()),
            integers=integers,
            joined=joined,
            link=options.link_weights,
        )
    progress.stage("tying the graphs to the weights")
    traces = _link(resolved, traced, placed)
    _stamp(traces, surgeries(_recipe(resolved)), resolved.options.graph)
    return traces, placed


def _joins(options: BuildOptions) -> bool:
    """Whether products of the same states become one. Linked files are the checkpoint's own."""
    joins = options.dtype in capabilities(options.target).one_product
    return joins and options.tensor_parallel == 1 and not options.link_weights


def _trace_kinds(
    resolved: ResolvedBuild, dtype: torch.dtype, progress: Progress
) -> dict[GraphName, Traced]:
    """A trace of each kind of graph that the build has."""
    decoder, chunk, graph = resolved.decoder, resolved.prefill_chunk, resolved.options.graph
    ranks, methods = resolved.options.tensor_parallel, table.methods_on(resolved.geometry, graph)
    states = any(method.reads_hidden_states for method in methods)
    progress.stage("tracing prefill")
    models = {
        f"prefill.c{tokens}": trace.trace_prefill(decoder, dtype, tokens, states, ranks)
        for tokens in resolved.chunks[:-1]
    }
    models["prefill"] = trace.trace_prefill(decoder, dtype, chunk, states, ranks)
    progress.stage("tracing decode")
    parallel = graph.data_parallel_attention
    models["decode"] = trace.trace_decode(decoder, dtype, states, 1, ranks, parallel)
    tokens, kinds = resolved.geometry.steps.tokens, kinds_of(resolved.geometry, graph, chunk)
    for kind in kinds.values():
        if kind.checks_drafts:
            progress.stage("tracing decode of several tokens")
            models[kind.name] = trace.trace_decode(decoder, dtype, states, tokens, ranks)
    model = TracedModel(decoder, dtype, resolved.geometry, chunk, states, ranks)
    for method in methods:
        if export := method.part("export"):
            progress.stage(f"tracing {export.title}")
            models |= export.traces(model)
    return {name: Traced.of(model, decoder) for name, model in models.items()}


def _quantize(
    resolved: ResolvedBuild, traced: dict[GraphName, Traced], progress: Progress
) -> tuple[Checkpoint, dict[GraphName, Traced], dict[str, Weight]]:
    """The checkpoint and the traces as `--weights` changes them, and the weights as integers."""
    checkpoint, options = resolved.checkpoint, resolved.options
    if options.weights in (None, "dequantize"):
        return checkpoint, traced, {}
    decoder = resolved.decoder
    target, read = capabilities(options.target), _layer_inputs(resolved, progress)
    signed, dtype = target.signed_integers, options.dtype
    chosen = choice.of_flag(options.weights, decoder, read, dtype=dtype, signed=signed)
    exact = choice.exact(options.weights, decoder)
    marking = Marking(checkpoint.tensors, chosen, decoder.embedding, target.integer_experts, exact)
    marked = {name: marking.mark(trace) for name, trace in traced.items()}
    return replace(checkpoint, tensors=marking.stored), marked, marking.weights


def _layer_inputs(resolved: ResolvedBuild, progress: Progress) -> dict[str, Inputs]:
    """Measure what layers read, by the names of weights.

    Empty where nothing is rounded, and where the model can't run.
    """
    if resolved.options.weights not in ("int4", "int8"):
        return {}
    largest = max(shapes.bytes_of_layers(resolved.decoder))
    if largest > _LARGEST_LAYER:
        progress.note(f"rounding only by the weights: a layer has {spelled(largest)} in fp32")
        return {}
    progress.stage("measuring what layers read")
    try:
        tokenizer, tokens = resolved.texts.get(TOKENIZER), list[int]()
        if tokenizer is not None:
            tokens = Tokenizer.from_buffer(tokenizer).encode(inputs.TEXT).ids
        return inputs.measure(resolved.checkpoint.tensors, resolved.decoder, tokens, choice.BLOCK)
    except Exception as error:  # of a model's own code: weights can be rounded without
        progress.note(f"rounding only by the weights: {type(error).__name__}: {error!s:.100}")
        return {}


def _link(resolved: ResolvedBuild, traced: dict[str, Traced], placed: PlacedWeights) -> Traces:
    """The traces, tied to the weights: decode's for each number of batch slots."""
    whole, smaller = resolved.options.batch, resolved.options.smaller_batches
    models: dict[str, onnx.ModelProto] = {}
    for name, found in traced.items():
        kind = graph_of(name).kind
        batches = [whole] if kind.rows == "batch" else [0]
        batches += smaller if kind.sized_by == "batch" else []
        for batch in batches:
            model = with_batch(found.model, batch) if batch else found.model
            link.link(model, found.sources, placed.tensors | placed.joined)
            models[name if batch in (0, whole) else f"{name}.{batch}"] = ir.to_proto(model)
    return Traces(models, resolved.prefill_chunk)


def _recipe(resolved: ResolvedBuild) -> Recipe:
    options = resolved.options
    return Recipe(resolved.geometry, options.target, options.graph)


def write_graphs(
    resolved: ResolvedBuild, traces: Traces, directory: Path
) -> tuple[dict[GraphName, GraphEntry], dict[GraphName, list[GraphEntry]]]:
    """Make the graphs by surgery, and write everything but the manifest: graphs and segments."""
    for name, text in resolved.texts.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(text)
    options = resolved.options
    graphs = finished_graphs(
        traces,
        _recipe(resolved),
        prefill_capacities=resolved.prefill_capacities,
        baseline=options.baseline,
    )
    if options.tensor_parallel > 1:
        return write_ranks(graphs, options.target, options.tensor_parallel, directory)
    return {name: write_graph(name, model, directory) for name, model in graphs.items()}, {}


def manifest_of(
    resolved: ResolvedBuild,
    graphs: dict[GraphName, GraphEntry],
    segments: dict[GraphName, list[GraphEntry]],
    traces: dict[TraceName, GraphEntry],
    placed: PlacedWeights,
    directory: Path,
) -> Manifest:
    """The build's manifest."""
    return Manifest(
        format_version=FORMAT_VERSION,
        model=resolved.model,
        geometry=resolved.geometry,
        batch=resolved.options.batch,
        prefill_chunk=resolved.prefill_chunk,
        dtype=resolved.options.dtype,
        quantization=resolved.options.quantization,
        target=resolved.options.target,
        graph_options=resolved.options.graph.recorded(),
        graphs=graphs,
        traces=traces,
        tensor_parallel=resolved.options.tensor_parallel,
        segments=segments,
        weights=placed.describe(directory),
        linked_weights=placed.linked,
        engines={},
        versions={"python": platform.python_version()} | {n: version(n) for n in _RECORDED},
        matrices=parts.matrices(placed.tensors, placed.integers),
        bits_per_weight=parts.bits_per_weight(placed.tensors, placed.integers),
        adapter=resolved.adapter,
    )
