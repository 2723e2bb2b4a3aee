"""Checkpoint -> traces -> weights -> graphs -> manifest, each stage a function of the one before.

Imports torch and transformers. Everything that can be refused is refused before the first trace.
"""

import json
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
from transformers import PretrainedConfig

from snapexport.building.options import BuildOptions
from snapexport.building.progress import Progress
from snapexport.building.staging import staged
from snapexport.contract.build_directory import Build, sha256_of
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.manifest import (
    FORMAT_VERSION,
    DType,
    GraphEntry,
    GraphName,
    Manifest,
    ModelFacts,
    TensorSpec,
    WeightFile,
)
from snapexport.exporter import architectures, hub, link, trace, weights
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.graphs import surgery

COPIED = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
BASELINE = "baseline"
_RECORDED = ("snapexport", "torch", "transformers", "onnx", "onnxscript", "onnx-graphsurgeon")
_TORCH: dict[DType, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before the work begins."""

    options: BuildOptions
    checkpoint: Checkpoint
    config: PretrainedConfig
    model: ModelFacts
    geometry: CacheGeometry
    prefill_chunk: int


@dataclass(frozen=True)
class Traces:
    """The two graphs with their markers: what all policies and targets start from."""

    prefill: onnx.ModelProto
    decode: onnx.ModelProto


def write_build(options: BuildOptions, progress: Progress) -> Build:
    """Carry out a build. The directory appears whole or not at all. Raises UserError."""
    progress.stage("reading the checkpoint")
    plan = plan_build(options)
    with staged(options.out, options.overwrite) as directory:
        traces, placed = trace_model(plan, directory, progress)
        progress.stage("surgery")
        graphs = write_graphs(plan, traces, directory)
        _copy_configs(plan.checkpoint, directory)
        progress.stage("hashing the weights")
        manifest_of(plan, graphs, weights.describe(placed, directory)).write(directory)
    return Build.open(options.out)


def plan_build(options: BuildOptions) -> Plan:
    """Read headers and configs, and refuse what can't be built."""
    checkpoint = Checkpoint.open(hub.resolve(options.model))
    architecture = architectures.require_verified(checkpoint)
    config = architectures.load_config(checkpoint)
    model = architectures.model_facts(architecture, config, _generation_config(checkpoint))
    geometry = options.geometry(model)
    return Plan(options, checkpoint, config, model, geometry, options.chunk(geometry))


def trace_model(
    plan: Plan, directory: Path, progress: Progress
) -> tuple[Traces, weights.PlacedWeights]:
    """Trace both graphs and tie them to the weights, which are placed in `directory`."""
    dtype = _TORCH[plan.options.dtype]
    progress.stage("tracing prefill")
    prefill = trace.trace_prefill(plan.config, dtype, plan.prefill_chunk)
    progress.stage("tracing decode")
    decode = trace.trace_decode(plan.config, dtype, plan.options.batch)
    sources = [link.checkpoint_tensors(m, plan.checkpoint, plan.config) for m in (prefill, decode)]
    progress.stage("placing the weights")
    wanted = {tensor for source in sources for tensor in source.values()}
    placed = weights.place(
        plan.checkpoint,
        wanted,
        plan.options.dtype,
        directory / weights.WEIGHTS,
        progress.converted,
    )
    progress.stage("linking the weights")
    for model, source in zip((prefill, decode), sources, strict=True):
        link.link(model, source, placed.tensors)
    return Traces(ir.to_proto(prefill), ir.to_proto(decode)), placed


def write_graphs(plan: Plan, traces: Traces, directory: Path) -> dict[GraphName, GraphEntry]:
    """Surgery for every graph of the build."""
    geometry, target = plan.geometry, plan.options.target
    graphs: dict[GraphName, GraphEntry] = {}

    def write(name: GraphName, model: onnx.ModelProto) -> None:
        graphs[name] = _write_graph(model, directory, f"{name}.onnx")

    write("prefill", surgery.prefill(traces.prefill, geometry, target))
    write("decode", surgery.decode(traces.decode, geometry, target))
    if geometry.compresses and plan.prefill_chunk != geometry.L_max:
        write("compress", surgery.compress(traces.prefill, geometry, target))
    if plan.options.baseline:
        # ONNX Runtime reads external data only below the graph's own folder.
        weights.link_again(directory / weights.WEIGHTS, directory / BASELINE / weights.WEIGHTS)
        full = geometry.as_full()
        write("baseline/prefill", surgery.prefill(traces.prefill, full, target))
        write("baseline/decode", surgery.decode(traces.decode, full, target))
    return graphs


def _write_graph(model: onnx.ModelProto, directory: Path, file: str) -> GraphEntry:
    path = directory / file
    path.write_bytes(model.SerializeToString(deterministic=True))
    return GraphEntry(
        file=file,
        sha256=sha256_of(path),
        inputs=[_tensor_spec(value) for value in model.graph.input],
        outputs=[_tensor_spec(value) for value in model.graph.output],
    )


def _tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    return TensorSpec(
        name=value.name, dtype=dtype, shape=[dim.dim_value for dim in tensor.shape.dim]
    )


def manifest_of(
    plan: Plan, graphs: dict[GraphName, GraphEntry], weight_files: list[WeightFile]
) -> Manifest:
    """The contract with whatever runs the build."""
    return Manifest(
        format_version=FORMAT_VERSION,
        model=plan.model,
        geometry=plan.geometry,
        batch=plan.options.batch,
        prefill_chunk=plan.prefill_chunk,
        dtype=plan.options.dtype,
        target=plan.options.target,
        graphs=graphs,
        weights=weight_files,
        versions={"python": platform.python_version()} | {n: version(n) for n in _RECORDED},
    )


def _generation_config(checkpoint: Checkpoint) -> dict[str, object]:
    path = checkpoint.directory / "generation_config.json"
    content = json.loads(path.read_bytes()) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def _copy_configs(checkpoint: Checkpoint, directory: Path) -> None:
    for name in COPIED:
        source = checkpoint.directory / name
        if source.is_file():
            shutil.copyfile(source, directory / name)
