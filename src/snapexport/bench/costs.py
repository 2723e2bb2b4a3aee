"""The work that a build's prefill, hand-over and decode step can't avoid.

Counted from the manifest and the weights' headers. Padding, recomputed overlaps, masks and anything
written and read again on the way are not counted: they are what the ratio to the floor shows.
"""

import math
from dataclasses import dataclass

import numpy as np

from snapexport.bench.floors import Work
from snapexport.bench.weights import Weights
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import LayerGeometry
from snapexport.contract.manifest import Manifest, TensorSpec


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """One layer. key, value: bytes of a position, all KV heads. pair: operations of a query token
    and an attended position, all heads (query times key, weight times value). window: 0 for none.
    """

    geometry: LayerGeometry
    key: int
    value: int
    pair: int
    window: int

    @property
    def position(self) -> int:
        """Bytes of a position's key and value."""
        return self.key + self.value

    def attended(self, position: int, prompt_length: int) -> int:
        """Slots that a decoded token attends to."""
        valid = self.geometry.valid(position, prompt_length)
        return min(valid, self.window) if self.window else valid

    def pairs(self, length: int) -> int:
        """Of a prompt: each token with those before it, in its window, and itself."""
        whole = min(length, self.window) if self.window else length
        return whole * (whole + 1) // 2 + (length - whole) * whole


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one cache: the build's own, or the full one of its baseline."""

    weights: Weights
    layers: tuple[LayerCosts, ...]
    L_obs: int

    @classmethod
    def of(cls, build: Build, *, full_cache: bool) -> "Costs":
        manifest = build.manifest
        geometry = manifest.geometry.as_full() if full_cache else manifest.geometry
        pairs = zip(geometry.layers, _cache_specs(manifest), strict=True)
        layers = tuple(_layer(manifest, *pair, index) for index, pair in enumerate(pairs))
        return cls(Weights.of(build), layers, geometry.L_obs)

    def prefill(self, length: int) -> Work:
        """Weights once and the prompt's keys and values written; logits of the last token alone."""
        tokens = length * (self.weights.elements - self.weights.output) + self.weights.output
        return Work(
            self.weights.nbytes + sum(layer.position * length for layer in self.layers),
            2 * tokens + sum(layer.pair * layer.pairs(length) for layer in self.layers),
        )

    def decode(self, position: int, prompt_length: int, active: int) -> Work:
        """One token of each active request: weights once, their valid slots, a slot written."""
        attended = [layer.attended(position, prompt_length) for layer in self.layers]
        pairs = list(zip(self.layers, attended, strict=True))
        cache = sum(layer.position * (slots + 1) for layer, slots in pairs)
        attention = sum(layer.pair * slots for layer, slots in pairs)
        return Work(
            self.weights.nbytes + active * cache,
            active * (2 * self.weights.elements + attention),
        )

    def hand_over(self, length: int) -> Work:
        """The candidates' keys read for the vote; what stays read once and written once."""
        voting = [layer for layer in self.layers if layer.geometry.K]
        kept = sum(
            layer.position * layer.geometry.valid(length - 1, length) for layer in self.layers
        )
        votes = sum(layer.key * layer.geometry.candidates(length) for layer in voting)
        products = sum(layer.pair // 2 * layer.geometry.candidates(length) for layer in voting)
        return Work(votes + 2 * kept, self.L_obs * products)


def _cache_specs(manifest: Manifest) -> list[tuple[TensorSpec, TensorSpec]]:
    """Key and value input of each layer's decode cache, [B,Hkv,S,D]."""
    specs = {spec.name: spec for spec in manifest.graphs["decode"].inputs}
    layers = range(manifest.geometry.num_layers)
    return [(specs[names.past_key(n)], specs[names.past_value(n)]) for n in layers]


def _layer(
    manifest: Manifest, geometry: LayerGeometry, specs: tuple[TensorSpec, TensorSpec], index: int
) -> LayerCosts:
    key, value = specs
    heads = manifest.model.num_attention_heads
    pair = 2 * heads * (key.shape[3] + value.shape[3])
    window = manifest.model.sliding_window[index]
    return LayerCosts(geometry, _position_bytes(key), _position_bytes(value), pair, window)


def _position_bytes(spec: TensorSpec) -> int:
    _, heads, _, dim = spec.shape
    return math.prod((heads, dim, np.dtype(spec.dtype).itemsize))
