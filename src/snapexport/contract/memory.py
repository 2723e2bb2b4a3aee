"""Counts the bytes of weights, caches and attention's scores, by the tensors of a build's graphs.

Loads nothing. A build that is not made yet has the tensors of `interface.graph_specs`, and its
weights are counted from a checkpoint (build.plan.weights). What a step has to move at least is
another number (measure.bench.costs).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.graph_specs import Shape
from snapexport.contract.manifest import GraphEntry, GraphName, Manifest, TensorSpec
from snapexport.contract.model_facts import LayerHeads, ModelFacts
from snapexport.contract.sizes import tensor_bytes
from snapexport.contract.targets import Target, capabilities
from snapexport.files.dtypes import BY_FLAG, BY_NUMPY
from snapexport.methods import table

_FP32 = 4

GPU_CONTEXT = 600 * 2**20
"""CUDA's context and TensorRT's libraries on the GPU, before the first layer: 574 MiB in a log of
NVIDIA/TensorRT-LLM's issue 538 (TensorRT 9), rounded up."""


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


def total_bytes(specs: Iterable[TensorSpec]) -> int:
    """Bytes of inputs or outputs."""
    return sum(map(tensor_bytes, specs))


def planned_bytes(specs: Iterable[tuple[str, Shape]]) -> int:
    """Bytes of tensors of `interface.graph_specs`."""
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
    held = [specs[name(n)] for n in caches for name in (names.past_key, names.past_value)]
    states = total_bytes(spec for name, spec in specs.items() if names.is_state(name))
    dtype, length = BY_FLAG[manifest.dtype].numpy, manifest.geometry.L_max
    return states + sum(tensor_bytes(_with_slots(spec, length, dtype)) for spec in held)


def _with_slots(cache: TensorSpec, slots: int, dtype: str) -> TensorSpec:
    batch, kv_heads, _, head_dim = cache.shape
    return TensorSpec(name=cache.name, dtype=dtype, shape=[batch, kv_heads, slots, head_dim])


def scores_bytes(model: ModelFacts, rows: int, slots: int) -> int:
    """Bytes of a layer's scores, where they are formed: [H,rows,slots] in fp32."""
    return max(layer.heads for layer in model.layers) * rows * slots * _FP32


def vote_scores_bytes(
    model: ModelFacts, geometry: CacheGeometry, target: Target, slots: int
) -> int:
    """Bytes of the scores of one layer's vote, with the copies that the target's runtime holds.

    A voter that needs more or less than its window's scores says so.
    """
    scores = scores_bytes(model, geometry.vote.L_obs, slots)
    for method in table.METHODS:
        if method.vote_scores and method.voter == geometry.voter:
            scores = method.vote_scores(model, geometry, slots)
    return int(capabilities(target).vote_score_copies * scores)


def fused_scratch_bytes(states: int, rows: int, slots: int) -> int:
    """Bytes of a fused kernel's copies: a layer's keys and values, and the mask in 16 bits.

    states: bytes of the keys and values that are copied. Measured with the builder of TensorRT for
    RTX 1.7 (docs/how-to/tensorrt.md).
    """
    return states + 2 * rows * slots


def composed_attention(manifest: Manifest) -> dict[str, int]:
    """Bytes of a layer's scores, [B,H,C,S] in fp32, by graph; fused graphs are left out.

    Soft-capped attention is composed too, and not found: a manifest does not say so.
    """
    if capabilities(manifest.target).fused_shapes is None:
        return {}
    return {
        name: max(found)
        for name, graph in manifest.graphs.items()
        if graph_of(name).kind.has_attention and (found := [*_composed(manifest, graph)])
    }


def _composed(manifest: Manifest, graph: GraphEntry) -> Iterator[int]:
    """Bytes of the scores of each attention that is not fused."""
    for layer, batch, rows, slots in _attentions(manifest, graph):
        beside_sinks = layer.sinks and batch > 1  # the sink's slot is made for one row of the batch
        if beside_sinks or not _is_fused(manifest, layer, rows, slots):
            yield batch * layer.heads * rows * slots * _FP32


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
    """(heads, B, C, S) for each cache: rows and keys. Of a single shot its rows are its keys.

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
