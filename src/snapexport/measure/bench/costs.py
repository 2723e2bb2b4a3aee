"""Counts the least work of a build's prefill, compress step and decode step.

Counts from the manifest and the headers of the weights' files; nothing is loaded. Padding,
recomputed overlaps, masks and intermediate results are not counted; they show in the ratio to the
roofline. A tensor in a file that no graph uses would be counted too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import Manifest, TensorSpec
from snapexport.contract.memory import planned_bytes
from snapexport.contract.slots import CacheHeads, LayerGeometry
from snapexport.files import safetensors
from snapexport.files.dtypes import BY_FLAG
from snapexport.files.safetensors import TensorSpan
from snapexport.measure.bench.turns import Work

_EMBEDDING, _OUTPUT = "embed_tokens.weight", "lm_head.weight"
_INTEGERS = {".int4": 2, ".signed4": 2, ".fp4": 2, ".int8": 1, ".signed8": 1}
"""Endings of parts that hold integers (exporter/weights/forms/parts.py), and integers of a byte."""
_BESIDE = (".scales", ".zeros", ".minima", ".order", ".factor")


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights that one pass reads and multiplies.

    nbytes: of all the matrices and norms. elements: of the matrices, output: of the last one.
    """

    nbytes: int
    elements: int
    output: int

    @classmethod
    def of(cls, build: Build) -> "Weights":
        spans: dict[str, TensorSpan] = {}
        for weights in build.manifest.weights:
            spans |= safetensors.read_header(build.directory / weights.file)
        return cls.count(spans)

    @classmethod
    def count(cls, spans: Mapping[str, TensorSpan]) -> "Weights":
        """Count all weights but those of which a step takes only some rows, or a packed copy."""
        has_output = any(_is(name, _OUTPUT) for name in spans)
        read = {
            name: span
            for name, span in spans.items()
            # Not the original of integers, nor an embedding beside an output matrix.
            if not any(name + end in spans for end in _INTEGERS)
            and not (has_output and _is(name, _EMBEDDING))
        }
        elements = {name: _elements(name, span.shape) for name, span in read.items()}
        return cls(
            sum(span.nbytes for span in read.values()),
            sum(elements.values()),
            # Where they are tied, the embedding's matrix makes the logits.
            sum(n for name, n in elements.items() if _is(name, _OUTPUT) or _is(name, _EMBEDDING)),
        )


def _is(name: str, matrix: str) -> bool:
    """Whether it is that matrix, or a part of it."""
    stem, dot, end = name.rpartition(".")
    return name.endswith(matrix) or (dot + end in (*_INTEGERS, *_BESIDE) and stem.endswith(matrix))


def _elements(name: str, shape: tuple[int, ...]) -> int:
    """Factors of a matrix product: none in norms, and in the parts beside integers."""
    if name.endswith(_BESIDE) or len(shape) < 2:
        return 0
    of_byte = next((count for end, count in _INTEGERS.items() if name.endswith(end)), 1)
    return math.prod(shape) * of_byte


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Costs of one layer for all its heads, or of one of its head groups.

    key, value: bytes of a position in prefill. slot: bytes of key and value of a cache slot in
    decode. fixed: further bytes of a request's cache (scales). pair: operations for a query token
    and an attended position: query . key, and weight * value. window, chunk: 0: none.
    readers: layers that attend to the cache.
    """

    geometry: LayerGeometry
    key: int
    value: int
    slot: int
    pair: int
    window: int
    fixed: int = 0
    chunk: int = 0
    readers: int = 1

    def attended_slots(self, position: int) -> int:
        """Cache slots that a decoded token attends to."""
        valid = self.geometry.valid(position)
        if self.chunk:
            return min(valid, position % self.chunk + 1)
        return min(valid, self.window) if self.window else valid

    def pairs(self, length: int) -> int:
        """(query, attended position) pairs of a prompt, within the window, or the chunks."""
        if self.chunk:
            chunks, rest = divmod(length, self.chunk)
            return chunks * self.chunk * (self.chunk + 1) // 2 + rest * (rest + 1) // 2
        whole = min(length, self.window) if self.window else length
        return whole * (whole + 1) // 2 + (length - whole) * whole


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs with one cache: the build's own, or the baseline's full cache."""

    weights: Weights
    layers: tuple[LayerCosts, ...]
    L_obs: int

    @classmethod
    def of(cls, build: Build, *, full_cache: bool) -> "Costs":
        manifest = build.manifest
        geometry = manifest.geometry.as_full() if full_cache else manifest.geometry
        held = geometry.slots.heads_held(manifest.model.kv_heads)
        layers = (
            _layer(manifest, cache, heads, shape, full_cache)
            for cache, heads, shape in zip(
                geometry.slots.caches, held, geometry.layers, strict=True
            )
        )
        return cls(Weights.of(build), tuple(layers), geometry.vote.L_obs)

    def prefill(self, length: int) -> Work:
        """Read the weights once, write the prompt's keys and values; logits of the last token."""
        tokens = length * (self.weights.elements - self.weights.output) + self.weights.output
        return Work(
            self.weights.nbytes + sum((layer.key + layer.value) * length for layer in self.layers),
            2 * tokens
            + sum(layer.readers * layer.pair * layer.pairs(length) for layer in self.layers),
        )

    def decode(self, position: int, active: int) -> Work:
        """One token of each active request: read weights and valid slots, write a cache slot."""
        pairs = [(layer, layer.readers * layer.attended_slots(position)) for layer in self.layers]
        cache = sum(layer.fixed + layer.slot * (slots + 1) for layer, slots in pairs)
        attention = sum(layer.pair * slots for layer, slots in pairs)
        return Work(
            self.weights.nbytes + active * cache, active * (2 * self.weights.elements + attention)
        )

    def compress(self, length: int) -> Work:
        """Read the eligible positions' keys for the vote; read and write the compressed cache."""
        voting = [layer for layer in self.layers if layer.geometry.K]
        kept = sum(
            (layer.key + layer.value + layer.slot) * layer.geometry.valid(length - 1) + layer.fixed
            for layer in self.layers
        )
        votes = sum(layer.key * layer.geometry.eligible(length) for layer in voting)
        products = sum(layer.pair // 2 * layer.geometry.eligible(length) for layer in voting)
        return Work(votes + kept, self.L_obs * products)


def _layer(
    manifest: Manifest, cache: CacheHeads, heads: int, geometry: LayerGeometry, full_cache: bool
) -> LayerCosts:
    """heads: KV heads of the cache."""
    specs = {spec.name: spec for spec in manifest.graphs["decode"].inputs}
    # By layer, since a full cache has no head groups: with them all layers have the same widths.
    states = [specs[names.past_key(cache.layer)], specs[names.past_value(cache.layer)]]
    # An int8 cache has scales of key and value, [B,Hkv,1,D].
    scales = [f"{names.past_key(cache.layer)}_scale", f"{names.past_value(cache.layer)}_scale"]
    key, value = (_position_bytes(spec, heads, BY_FLAG[manifest.dtype].numpy) for spec in states)
    slot, fixed = key + value, 0
    if not full_cache:
        slot = sum(_position_bytes(spec, heads, spec.dtype) for spec in states)
        of_scales = [specs[name] for name in scales if name in specs]
        fixed = sum(_position_bytes(spec, heads, spec.dtype) for spec in of_scales)
    layer = manifest.model.layer(cache.layer)
    readers = [other.cache_of for other in manifest.model.layers].count(cache.layer)
    pair = 2 * layer.group * heads * sum(layer.widths)
    span = layer.window, fixed, layer.chunk
    return LayerCosts(geometry, key, value, slot, pair, *span, readers)


def _position_bytes(spec: TensorSpec, heads: int, dtype: str) -> int:
    """Bytes of one request and position of a cache [B,Hkv,S,D]. heads: its KV heads."""
    return planned_bytes([(dtype, (heads, spec.shape[3]))])
