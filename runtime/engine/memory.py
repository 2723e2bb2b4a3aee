"""Computes the bytes of a build's caches from its manifest. Loads nothing."""

from dataclasses import dataclass

from snapexport.contract import names
from snapexport.contract.manifest import GraphName, Manifest, TensorSpec
from snapexport.contract.sizes import tensor_bytes
from snapexport.contract.tensors import full_cache_bytes


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Bytes. decode: all batch slots. full: the same, uncompressed. prefill: the prompt cache."""

    decode: int
    full: int
    prefill: int


def cache_bytes(manifest: Manifest) -> CacheBytes:
    """Return the bytes of the caches that stay allocated while the build runs, in one rank."""
    caches = _caches(manifest, "decode")
    return CacheBytes(
        decode=sum(map(tensor_bytes, caches)),
        full=full_cache_bytes(manifest),
        prefill=sum(map(tensor_bytes, _caches(manifest, "prefill"))),
    )


def _caches(manifest: Manifest, graph: GraphName) -> list[TensorSpec]:
    """The cache inputs of a graph: a single-shot prefill has none."""
    return [spec for spec in manifest.graphs[graph].inputs if names.is_past(spec.name)]
