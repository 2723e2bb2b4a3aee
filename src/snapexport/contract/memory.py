"""Counts bytes: of tensors, weights and caches, and what each target's runtime holds beside them.

Loads nothing. `plan`, `inspect`, `engine`, `bench` and the servers count by these functions, and by
the one table of measured factors. The tensors are those of a build's graphs; a build that is not
made yet has those of `build_directory.graph_specs`, and its weights are counted from a checkpoint
(builder.plan.weights). The least that a step has to move is another number (measure.bench.costs).
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.graph_specs import Shape
from snapexport.contract.manifest import GraphEntry, GraphName, Manifest, TensorSpec
from snapexport.contract.model_facts import LayerHeads, ModelFacts
from snapexport.contract.targets import Target, capabilities
from snapexport.files.dtypes import BY_FLAG, BY_NUMPY
from snapexport.methods import table

FP32_BYTES = 4

GPU_CONTEXT = 600 * 2**20
"""CUDA's context and TensorRT's libraries on the GPU, before the first layer: 574 MiB in a log of
NVIDIA/TensorRT-LLM's issue 538 (TensorRT 9), rounded up."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Memory that a target's runtime holds beside weights, caches, inputs and outputs.

    process: bytes before the first layer (docs/how-to/plan.md).
    arena: copies of a layer's work. ONNX Runtime allocates tensor by tensor in a graph's first run,
        and one block in later runs; its arena keeps the memory of the first run.
    vote_keys, vote_scores: copies of the prompt's keys, and of the window's scores, while the vote
        runs as standard operators. ONNX Runtime holds three of the scores (products, masked and
        softmax); a compiler joins what it can.
    composed_scores: copies of scores that are soft-capped, or composed beside a sink: before and
        after.
    sparse_reads: copies of what a sparse chunk attends to: chosen, joined with the chunk, and with
        the chunk written after it.
    build_host, build_copies: host memory of the compiler before the first layer, and its copies of
        the weights.
    """

    process: int = 80 * 2**20
    arena: int = 2
    vote_keys: int = 1
    vote_scores: float = 3
    composed_scores: int = 2
    sparse_reads: int = 3
    build_host: int = 0
    build_copies: float = 0


_TENSORRT = Factors(
    process=GPU_CONTEXT,
    arena=1,
    # 219 MB at [32,8,131072] in fp32, as the builder of TensorRT for RTX 1.7 reports.
    vote_scores=1.7,
    # 2,061 MiB in a log of NVIDIA/TensorRT-LLM's issue 538 (TensorRT 9), rounded.
    build_host=2 * 2**30,
    # The network's and the engine's: NVIDIA's developer guide, "How TensorRT Works", says at least
    # two.
    build_copies=2.0,
)
FACTORS: Mapping[Target, Factors] = {
    # The prompt's keys are sliced at its end. Measured: the slices of two layers are alive at once.
    "onnxruntime": Factors(vote_keys=2),
    "tensorrt": _TENSORRT,
    # Copies of weights: measured on 0.1 to 3 GB, beside the weight files, which are mapped.
    "tensorrt-rtx": replace(_TENSORRT, vote_keys=0, build_host=2**28, build_copies=1.4),
    "portable": Factors(),
    "openvino": Factors(),
}
"""The measured factors of each target."""


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Bytes. decode: all batch slots. full: the same, uncompressed. prefill: the prompt cache."""

    decode: int
    full: int
    prefill: int


def cache_bytes(manifest: Manifest) -> CacheBytes:
    """Return the bytes of the caches that stay allocated while the build runs, in one rank."""
    return CacheBytes(
        decode=total_bytes(caches_of(manifest, "decode")),
        full=full_cache_bytes(manifest),
        prefill=total_bytes(caches_of(manifest, "prefill")),
    )


def caches_of(manifest: Manifest, graph: GraphName) -> list[TensorSpec]:
    """The cache inputs of a graph: a single-shot prefill has none."""
    return [spec for spec in manifest.graphs[graph].inputs if names.is_past(spec.name)]


def tensor_bytes(spec: TensorSpec) -> int:
    """Bytes of one input or output."""
    return planned_bytes([(spec.dtype, tuple(spec.shape))])


def total_bytes(specs: Iterable[TensorSpec]) -> int:
    """Bytes of inputs or outputs."""
    return sum(map(tensor_bytes, specs))


def planned_bytes(specs: Iterable[tuple[str, Shape]]) -> int:
    """Bytes of tensors of `build_directory.graph_specs`."""
    return sum(math.prod(shape) * BY_NUMPY[dtype].bytes for dtype, shape in specs)


def weights_bytes(manifest: Manifest) -> int:
    """Bytes of the weights' files."""
    return sum(file.size for file in manifest.weights)


def full_cache_bytes(manifest: Manifest) -> int:
    """Bytes of decode's caches without compression: [B,Hkv,T,D] each, in the build's dtype.

    With the recurrent states, which are as large then.
    """
    specs = {spec.name: spec for spec in manifest.graphs["decode"].inputs}
    caches = [cache.cache for cache in manifest.geometry.slots.caches]
    whole = [specs[name(n)] for n in caches for name in (names.past_key, names.past_value)]
    states = total_bytes(spec for name, spec in specs.items() if names.is_state(name))
    dtype, length = BY_FLAG[manifest.dtype].numpy, manifest.geometry.L_max
    shapes = [tuple(spec.shape) for spec in whole]
    return states + planned_bytes((dtype, (*s[:2], length, s[3])) for s in shapes)


def scores_bytes(model: ModelFacts, rows: int, slots: int) -> int:
    """Bytes of a layer's scores, where they are formed: [H,rows,slots] in fp32."""
    return max(layer.heads for layer in model.layers) * rows * slots * FP32_BYTES


def vote_scores_bytes(
    model: ModelFacts, geometry: CacheGeometry, target: Target, slots: int
) -> int:
    """Bytes of the scores of one layer's vote, with the copies that the target's runtime holds.

    A voter that needs more or less than its window's scores says so.
    """
    scores = scores_bytes(model, geometry.vote.L_obs, slots)
    for method in table.METHODS:
        if method.vote_scores and geometry.voter in method.voters:
            scores = method.vote_scores(model, geometry, slots)
    return int(FACTORS[target].vote_scores * scores)


def fused_scratch_bytes(states: int, rows: int, slots: int) -> int:
    """Bytes of a fused kernel's copies: a layer's keys and values, and the mask in 16 bits.

    states: bytes of the keys and values that are copied. Measured with the builder of TensorRT for
    RTX 1.7 (docs/how-to/tensorrt.md).
    """
    return states + 2 * rows * slots


def scratch_bytes(manifest: Manifest, name: GraphName) -> int:
    """Bytes of one layer's scratch memory in an engine, by the shapes of its attention.

    Attention copies a layer's keys and values, unless it is fused and has one row for each batch
    slot. A chunk's converts the mask [C,T] to 16 bits. Composed attention has scores.
    """
    inputs = {spec.name: spec for spec in manifest.graphs[name].inputs}
    layers = [spec for spec in caches_of(manifest, name) if spec.name.endswith(".key")]
    slots = max((spec.shape[2] for spec in layers), default=0)
    kind = graph_of(name).kind
    if name == _voting(manifest):
        return _vote_scratch(manifest, slots)
    ids = inputs.get(names.INPUT_IDS)
    rows = ids.shape[1] if ids else 1
    scores = composed_attention(manifest).get(name, 0)
    if not layers or (rows == 1 and not scores):
        return 0
    copied = max(map(tensor_bytes, layers))
    # A chunk may come after the cache, or after a part of it.
    read = kind.attended(manifest.graph_options, 0, rows, slots)
    copied, slots = copied * read // slots, read
    if kind.extends_rows:
        scores = max(scores, _vote_scratch(manifest, slots))
    return fused_scratch_bytes(2 * copied, rows, slots) + scores


def _voting(manifest: Manifest) -> GraphName | None:
    """The graph that counts votes: a method's own, else compress."""
    found = [name for name in manifest.graphs if graph_of(name).kind.counts_votes]
    return found[-1] if found else None


def _vote_scratch(manifest: Manifest, slots: int) -> int:
    return vote_scores_bytes(manifest.model, manifest.geometry, manifest.target, slots)


def composed_attention(manifest: Manifest) -> dict[str, int]:
    """Bytes of a layer's scores, [B,H,C,S] in fp32, by graph; fused graphs are left out.

    Soft-capped attention is composed too, and not found: a manifest does not say so.
    """
    if capabilities(manifest.target).fused_shapes is None:
        return {}
    return {
        name: max(found)
        for name, graph in manifest.graphs.items()
        if graph_of(name).kind.has_attention and (found := [*_composed_scores(manifest, graph)])
    }


def _composed_scores(manifest: Manifest, graph: GraphEntry) -> Iterator[int]:
    """Bytes of the scores of each attention that is not fused."""
    for layer, batch, rows, slots in _attentions(manifest, graph):
        beside_sinks = layer.sinks and batch > 1  # the sink's slot is made for one row of the batch
        if beside_sinks or not _is_fused(manifest, layer, rows, slots):
            yield batch * layer.heads * rows * slots * FP32_BYTES


def _is_fused(manifest: Manifest, layer: LayerHeads, rows: int, slots: int) -> bool:
    """Whether there is a kernel. Latent attention has none, nor has a model with experts."""
    shapes, model = capabilities(manifest.target).fused_shapes, manifest.model
    assert shapes is not None
    fits = shapes.fits_with_sink if layer.sinks else shapes.fits
    plain = not model.num_experts and layer.query_dim == layer.key_dim == layer.value_dim
    return plain and fits(BY_FLAG[manifest.dtype].bytes, rows, slots, layer.query_dim)


def _attentions(
    manifest: Manifest, graph: GraphEntry
) -> Iterator[tuple[LayerHeads, int, int, int]]:
    """(heads, B, C, S) for each cache: rows and keys. In a single shot the rows are the keys.

    A chunk is written into its cache, or comes after it (extend), or after a part of it (sparse).
    """
    inputs = {spec.name: spec.shape for spec in graph.inputs}
    if names.INPUT_IDS not in inputs:
        return
    batch, rows = inputs[names.INPUT_IDS]
    kind, model = graph_of(graph.file.removesuffix(".onnx")).kind, manifest.model
    layers = model.num_hidden_layers
    caches = {
        names.number_of(n): shape[2]
        for n, shape in inputs.items()
        if names.is_past(n) and n.endswith(".key")
    }
    for number, slots in (caches or dict.fromkeys(range(layers), rows)).items():
        # Where caches are of head groups, they are more, and all layers have the same heads.
        layer = model.layer(min(number, layers - 1))
        yield layer, batch, rows, kind.attended(manifest.graph_options, layer.reach, rows, slots)


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(|[KMGT]I?)B?", re.IGNORECASE)


def size(text: str) -> int:
    """Parse a size such as 80GiB, 80GB, 24G (= 24GB) or 4096. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is not a size: write it like 80GiB, 24GB or 512M")
    number, unit = match.groups()
    return int(float(number) * _UNITS[unit.upper()])


def spelled(nbytes: float) -> str:
    """Format bytes for messages: 15.96 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def in_mib(nbytes: float) -> float:
    """MiB, for a column whose head names the unit."""
    return nbytes / 2**20


def as_flag(nbytes: int) -> str:
    """Format bytes as --memory takes them, rounded up: 16GiB, 300MiB."""
    unit, name = (2**30, "GiB") if nbytes >= 10 * 2**30 else (2**20, "MiB")
    return f"{-(-nbytes // unit)}{name}"
