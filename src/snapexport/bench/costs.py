"""Counts the least work of a build's prefill, compress step and decode step.

Counts from the manifest and the weights' headers. Padding, recomputed overlaps, masks and
intermediate results are not counted; they show in the ratio to the roofline.
"""

from dataclasses import dataclass

from snapexport.bench.roofline import Work
from snapexport.bench.weights import Weights
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.bytes import ITEM_BYTES
from snapexport.contract.geometry import LayerGeometry
from snapexport.contract.manifest import Manifest, TensorSpec
from snapexport.contract.tensors import OF_DTYPE


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Costs of one layer, for all its heads.

    key, value: bytes of a position in prefill. slot: bytes of key and value of a cache slot in
    decode. fixed: further bytes of a request's cache (scales). pair: operations for a query token
    and an attended position: query . key, and weight * value. window: 0: none.
    """

    geometry: LayerGeometry
    key: int
    value: int
    slot: int
    pair: int
    window: int
    fixed: int = 0

    @property
    def position(self) -> int:
        """Bytes of a position's key and value in prefill."""
        return self.key + self.value

    def attended(self, position: int, prompt_length: int) -> int:
        """Cache slots that a decoded token attends to."""
        valid = self.geometry.valid(position, prompt_length)
        return min(valid, self.window) if self.window else valid

    def pairs(self, length: int) -> int:
        """(query, attended position) pairs of a prompt, within the window."""
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
        layers = tuple(
            _layer(manifest, layer, index, full_cache)
            for index, layer in enumerate(geometry.layers)
        )
        return cls(Weights.of(build), layers, geometry.L_obs)

    def prefill(self, length: int) -> Work:
        """Read the weights once, write the prompt's keys and values; logits of the last token."""
        tokens = length * (self.weights.elements - self.weights.output) + self.weights.output
        return Work(
            self.weights.nbytes + sum(layer.position * length for layer in self.layers),
            2 * tokens + sum(layer.pair * layer.pairs(length) for layer in self.layers),
        )

    def decode(self, position: int, prompt_length: int, active: int) -> Work:
        """One token of each active request: read weights and valid slots, write a cache slot."""
        attended = [layer.attended(position, prompt_length) for layer in self.layers]
        pairs = list(zip(self.layers, attended, strict=True))
        cache = sum(layer.fixed + layer.slot * (slots + 1) for layer, slots in pairs)
        attention = sum(layer.pair * slots for layer, slots in pairs)
        return Work(
            self.weights.nbytes + active * cache,
            active * (2 * self.weights.elements + attention),
        )

    def compress(self, length: int) -> Work:
        """Read the eligible positions' keys for the vote; read and write the compressed cache."""
        voting = [layer for layer in self.layers if layer.geometry.K]
        kept = sum(
            (layer.position + layer.slot) * layer.geometry.valid(length - 1, length) + layer.fixed
            for layer in self.layers
        )
        votes = sum(layer.key * layer.geometry.eligible(length) for layer in voting)
        products = sum(layer.pair // 2 * layer.geometry.eligible(length) for layer in voting)
        return Work(votes + kept, self.L_obs * products)


def _layer(manifest: Manifest, geometry: LayerGeometry, index: int, full_cache: bool) -> LayerCosts:
    specs = {spec.name: spec for spec in manifest.graphs["decode"].inputs}
    states = [specs[names.past_key(index)], specs[names.past_value(index)]]
    key, value = (_position_bytes(spec, OF_DTYPE[manifest.dtype]) for spec in states)
    slot, fixed = key + value, 0
    if not full_cache:
        slot = sum(_position_bytes(spec, spec.dtype) for spec in states)
        fixed = sum(_position_bytes(spec, spec.dtype) for spec in _scales(specs, index))
    dims = sum(spec.shape[3] for spec in states)
    pair = 2 * manifest.model.num_attention_heads * dims
    window = manifest.model.sliding_window[index]
    return LayerCosts(geometry, key, value, slot, pair, window, fixed)


def _scales(specs: dict[str, TensorSpec], index: int) -> list[TensorSpec]:
    """A layer's scales of key and value, [B,Hkv,1,D]; none unless the cache is int8."""
    scales = (names.past_key_scale(index), names.past_value_scale(index))
    return [specs[name] for name in scales if name in specs]


def _position_bytes(spec: TensorSpec, dtype: str) -> int:
    """Bytes of one request and position of a cache [B,Hkv,S,D]."""
    _, heads, _, dim = spec.shape
    return heads * dim * ITEM_BYTES[dtype]
