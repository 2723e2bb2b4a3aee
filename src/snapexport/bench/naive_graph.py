"""Makes SnapStream's naive decode graph: each step copies the cache instead of writing one row.

The paper's Listing 2: sinks, the ring without its oldest row, the new row and the top-k rows are
concatenated. The ring must be full, and its oldest row must lie in its first slot.
"""

from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import helper

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry, LayerGeometry

_POSITIONS = 2
"""The axis of positions in a cache [B,Hkv,S,D]."""


GRAPH = "decode.naive.onnx"


def write(build: Build) -> Path:
    """The naive graph of a build, beside its own, whose weights it reads. Written anew each time:
    what made the build does not tell what made this."""
    path = build.directory / GRAPH
    model = onnx.load(build.graph("decode"), load_external_data=False)
    rewritten = naive(model, build.manifest.geometry)
    assert rewritten == 2 * build.manifest.geometry.num_layers, rewritten
    path.write_bytes(model.SerializeToString())
    return path


def naive(model: onnx.ModelProto, geometry: CacheGeometry) -> int:
    """Rewrite a finished decode graph. Returns the number of copied caches, 2 a layer at most."""
    layers = _layers(geometry)
    nodes, rewritten = list[onnx.NodeProto](), 0
    for node in model.graph.node:
        if node.op_type == "TensorScatter" and node.input[0] in layers:
            nodes += _concatenated(model.graph, node, layers[node.input[0]])
            rewritten += 1
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return rewritten


def _layers(geometry: CacheGeometry) -> dict[str, LayerGeometry]:
    """By the names of their cache inputs."""
    layers = list(enumerate(geometry.layers))
    return {names.past_key(n): layer for n, layer in layers} | {
        names.past_value(n): layer for n, layer in layers
    }


def _concatenated(
    graph: onnx.GraphProto, write: onnx.NodeProto, layer: LayerGeometry
) -> Iterator[onnx.NodeProto]:
    """The nodes in place of a write of the new row (second input) into the cache (first)."""
    past, new = write.input[:2]
    (present,) = write.output
    ring, topk = layer.L_sink, layer.L_sink + layer.L_recent
    ranges = {"sinks": (0, ring), "ring": (ring + 1, topk), "topk": (topk, layer.cache_slots)}
    parts = {name: f"{past}.{name}" for name, (start, end) in ranges.items() if end > start}
    for name, part in parts.items():
        limits = [_int64(graph, f"{part}.{n}", n) for n in (*ranges[name], _POSITIONS)]
        yield helper.make_node("Slice", [past, *limits], [part])
    parts["new"] = new
    ordered = [parts[name] for name in ("sinks", "ring", "new", "topk") if name in parts]
    yield helper.make_node("Concat", ordered, [present], axis=_POSITIONS)


def _int64(graph: onnx.GraphProto, name: str, value: int) -> str:
    graph.initializer.append(helper.make_tensor(name, onnx.TensorProto.INT64, [1], [value]))
    return name
