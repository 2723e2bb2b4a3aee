"""What a build's caches weigh, from its manifest alone: nothing is loaded."""

from dataclasses import dataclass

from snapexport.contract import names
from snapexport.contract.bytes import tensor_bytes
from snapexport.contract.manifest import GraphName, Manifest, TensorSpec
from snapexport.contract.tensors import full_cache_bytes


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
        decode=sum(map(tensor_bytes, caches)),
        full=full_cache_bytes(manifest),
        prefill=sum(map(tensor_bytes, _caches(manifest, "prefill"))),
    )


def _caches(manifest: Manifest, graph: GraphName) -> list[TensorSpec]:
    """The cache inputs of a graph: a single-shot prefill has none."""
    return [spec for spec in manifest.graphs[graph].inputs if names.is_past(spec.name)]
