"""Surgery for every graph of a build, and what the manifest says of the files."""

from dataclasses import dataclass
from pathlib import Path

import onnx

from snapexport.contract.build_directory import sha256_of
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.manifest import GraphEntry, GraphName, Target, TensorSpec
from snapexport.graphs import surgery


@dataclass(frozen=True)
class Traces:
    """The two graphs with their markers: what all policies and targets start from."""

    prefill: onnx.ModelProto
    decode: onnx.ModelProto
    prefill_chunk: int


def finished_graphs(
    traces: Traces, geometry: CacheGeometry, target: Target, baseline: bool
) -> dict[GraphName, onnx.ModelProto]:
    """Every graph of the build, ready to be written."""
    graphs: dict[GraphName, onnx.ModelProto] = {
        "prefill": surgery.prefill(traces.prefill, geometry, target),
        "decode": surgery.decode(traces.decode, geometry, target),
    }
    if geometry.compresses and not geometry.is_single_shot(traces.prefill_chunk):
        graphs["compress"] = surgery.compress(traces.prefill, geometry, target)
    if baseline:
        full = geometry.as_full()
        graphs["baseline/prefill"] = surgery.prefill(traces.prefill, full, target)
        graphs["baseline/decode"] = surgery.decode(traces.decode, full, target)
    return graphs


def write_graph(name: GraphName, model: onnx.ModelProto, directory: Path) -> GraphEntry:
    """Write one graph below the build `directory`; its entry in the manifest."""
    path = directory / f"{name}.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    return GraphEntry(
        file=path.relative_to(directory).as_posix(),
        sha256=sha256_of(path),
        inputs=[_tensor_spec(value) for value in model.graph.input],
        outputs=[_tensor_spec(value) for value in model.graph.output],
    )


def _tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    shape = [dim.dim_value for dim in tensor.shape.dim]
    return TensorSpec(name=value.name, dtype=dtype, shape=shape)
