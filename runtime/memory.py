"""What a build's caches weigh, from its manifest alone: nothing is loaded."""

import math
from dataclasses import dataclass

from snapexport.contract import names
from snapexport.contract.manifest import GraphName, Manifest, TensorSpec

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """decode: all slots as built. full: the same slots uncompressed. prefill: the prompt's own."""

    decode: int
    full: int
    prefill: int


def cache_bytes(manifest: Manifest) -> CacheBytes:
    """Bytes of the caches that stay allocated while the build runs."""
    caches = _caches(manifest, "decode")
    return CacheBytes(
        decode=sum(map(_bytes, caches)),
        full=sum(_bytes(cache) // cache.shape[2] * manifest.geometry.L_max for cache in caches),
        prefill=sum(map(_bytes, _caches(manifest, "prefill"))),
    )


def _caches(manifest: Manifest, graph: GraphName) -> list[TensorSpec]:
    """The cache inputs of a graph: a single-shot prefill has none."""
    return [spec for spec in manifest.graphs[graph].inputs if names.is_past(spec.name)]


def _bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * _ITEM_BYTES[spec.dtype]
