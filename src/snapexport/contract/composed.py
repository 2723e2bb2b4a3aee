"""Finds the graphs whose attention a compiled target composes of single operators, and its cost."""

from collections.abc import Iterator

from snapexport.contract import names
from snapexport.contract.graph_kinds import MTP_PREFILL
from snapexport.contract.manifest import GraphEntry, Manifest
from snapexport.contract.targets import capabilities
from snapexport.files.dtypes import BY_FLAG

_FP32 = 4


def composed_attention(manifest: Manifest) -> dict[str, int]:
    """Bytes of a layer's scores, [B,H,C,S] in fp32, by graph; fused graphs are left out.

    Soft-capped attention is composed too, and not found: a manifest does not tell of it.
    """
    if capabilities(manifest.target).fused_shapes is None:
        return {}
    found: dict[str, int] = {}
    model = manifest.model
    for name, graph in manifest.graphs.items():
        if name == MTP_PREFILL:  # it has no attention
            continue
        for batch, rows, slots in attention_sizes(graph):
            if not _is_fused(manifest, rows, slots):
                scores = _FP32 * batch * model.num_attention_heads * rows * slots
                found[name] = max(scores, found.get(name, 0))
    return found


def _is_fused(manifest: Manifest, rows: int, slots: int) -> bool:
    """Whether there is a kernel. Latent attention has none, nor has a model with experts."""
    shapes, model = capabilities(manifest.target).fused_shapes, manifest.model
    assert shapes is not None
    fits = shapes.fits_with_sink if model.attention_sinks else shapes.fits
    plain = model.latent is None and not model.num_experts
    return plain and fits(BY_FLAG[manifest.dtype].bytes, rows, slots, model.head_dim)


def attention_sizes(graph: GraphEntry) -> Iterator[tuple[int, int, int]]:
    """(B, C, S) of layers: rows and keys. Of a single shot its rows are its keys.

    A chunk is written into its cache, or stands behind it (extend).
    """
    inputs = {spec.name: spec.shape for spec in graph.inputs}
    if names.INPUT_IDS not in inputs:
        return
    batch, rows = inputs[names.INPUT_IDS]
    caches = [shape for name, shape in inputs.items() if names.is_past(name)]
    behind = rows if graph.file == "extend.onnx" else 0
    for slots in {shape[2] + behind for shape in caches} or {rows}:
        yield batch, rows, slots
