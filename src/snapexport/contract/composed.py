"""Finds the graphs whose attention a compiled target composes of single operators, and its cost."""

from collections.abc import Iterator

from snapexport.contract import names
from snapexport.contract.bytes import DTYPE_BYTES
from snapexport.contract.manifest import GraphEntry, Manifest
from snapexport.contract.targets import capabilities

_FP32 = 4


def composed_attention(manifest: Manifest) -> dict[str, int]:
    """Bytes of a layer's scores, [B,H,C,S] in fp32, by graph; fused graphs are left out.

    Soft-capped attention is composed too, and not found: a manifest does not tell of it.
    """
    shapes = capabilities(manifest.target).fused_shapes
    if shapes is None:
        return {}
    found: dict[str, int] = {}
    model, value_bytes = manifest.model, DTYPE_BYTES[manifest.dtype]
    for name, graph in manifest.graphs.items():
        for batch, rows, slots in _attention_sizes(graph):
            if model.kv_lora_rank or not shapes.fits(value_bytes, rows, slots, model.head_dim):
                scores = _FP32 * batch * model.num_attention_heads * rows * slots
                found[name] = max(scores, found.get(name, 0))
    return found


def _attention_sizes(graph: GraphEntry) -> Iterator[tuple[int, int, int]]:
    """(B, C, S) of each layer; of a single shot its rows are its keys."""
    inputs = {spec.name: spec.shape for spec in graph.inputs}
    if names.INPUT_IDS not in inputs:
        return
    batch, rows = inputs[names.INPUT_IDS]
    caches = [shape for name, shape in inputs.items() if names.is_past(name)]
    for slots in {shape[2] for shape in caches} or {rows}:
        yield batch, rows, slots
