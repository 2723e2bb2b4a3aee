"""Sums the bytes of full caches, and pairs tensors that share a buffer."""

from snapexport.contract import names
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.manifest import GraphEntry, GraphName, Manifest, TensorSpec
from snapexport.contract.sizes import tensor_bytes
from snapexport.files.dtypes import BY_FLAG


def full_cache_bytes(manifest: Manifest) -> int:
    """Bytes of decode's caches without compression: [B,Hkv,T,D] each, in the build's dtype."""
    specs = {spec.name: spec for spec in manifest.graphs["decode"].inputs}
    layers = range(manifest.geometry.num_layers)
    states = [specs[name(n)] for n in layers for name in (names.past_key, names.past_value)]
    dtype, length = BY_FLAG[manifest.dtype].numpy, manifest.geometry.L_max
    return sum(tensor_bytes(_with_slots(spec, length, dtype)) for spec in states)


def _with_slots(cache: TensorSpec, slots: int, dtype: str) -> TensorSpec:
    batch, kv_heads, _, head_dim = cache.shape
    return TensorSpec(name=cache.name, dtype=dtype, shape=[batch, kv_heads, slots, head_dim])


def in_place(name: GraphName, graph: GraphEntry) -> dict[str, str]:
    """{present cache: the input whose buffer it has to share}."""
    if not graph_of(name).kind.writes_in_place:
        return {}
    inputs = {spec.name for spec in graph.inputs}
    outputs = [spec.name for spec in graph.outputs if names.is_present(spec.name)]
    pairs = {present: names.past_of(present) for present in outputs}
    return {present: past for present, past in pairs.items() if past in inputs}
