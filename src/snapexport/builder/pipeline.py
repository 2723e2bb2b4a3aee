"""Checkpoint -> traces -> weights -> graphs -> manifest, each stage a function of the one before.

Imports torch and transformers. Everything that can be refused is refused before the first trace.
"""

import dataclasses
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import onnx_ir as ir
import torch
from transformers import PretrainedConfig

from snapexport.builder.graph_files import Traces, finished_graphs, write_graph
from snapexport.builder.options import BuildOptions
from snapexport.builder.progress import Progress
from snapexport.builder.staging import staged
from snapexport.builder.top_tokens import require_in_vocabulary
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.manifest import (
    FORMAT_VERSION,
    DType,
    GraphEntry,
    GraphName,
    Manifest,
    ModelFacts,
    TraceName,
)
from snapexport.exporter import architectures, hub, int4, link, trace, weights
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.graphs.targets.tensorrt import allow_decomposition

COPIED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
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


def write_build(options: BuildOptions, progress: Progress) -> Build:
    """Carry out a build. The directory appears whole or not at all. Raises UserError."""
    progress.stage("reading the checkpoint")
    plan = plan_build(options)
    with staged(options.out, options.overwrite) as directory:
        traces, placed = trace_model(plan, directory, progress)
        progress.stage("surgery")
        graphs = write_graphs(plan, traces, directory)
        kept = traces.write(directory) if options.baseline else {}
        progress.stage("writing the manifest")
        manifest_of(plan, graphs, kept, placed, directory).write(directory)
        build = Build.open(directory)
    return dataclasses.replace(build, directory=options.out)


def plan_build(options: BuildOptions) -> Plan:
    """Read headers and configs, and refuse what can't be built."""
    checkpoint = Checkpoint.open(hub.resolve(options.model))
    architecture = architectures.require_verified(checkpoint)
    config = architectures.load_config(checkpoint)
    model = architectures.model_facts(architecture, config, checkpoint)
    geometry = options.geometry(model)
    require_in_vocabulary(options.top_tokens, model)
    return Plan(options, checkpoint, config, model, geometry, options.chunk(geometry))


def trace_model(
    plan: Plan, directory: Path, progress: Progress
) -> tuple[Traces, weights.PlacedWeights]:
    """Trace all graphs and tie them to the weights, which are placed in `directory`."""
    options, dtype = plan.options, _TORCH[plan.options.dtype]
    progress.stage("tracing prefill")
    models = [trace.trace_prefill(plan.config, dtype, plan.prefill_chunk)]
    batches = [options.batch, *options.smaller_batches]
    for batch in batches:
        progress.stage(f"tracing decode, {batch} slot{'s' if batch > 1 else ''}")
        models.append(trace.trace_decode(plan.config, dtype, batch))
    sources = [link.checkpoint_tensors(m, plan.checkpoint, plan.config) for m in models]
    if options.weights:
        sources = [int4.mark(m, s) for m, s in zip(models, sources, strict=True)]
    progress.stage("placing the weights")
    wanted = {tensor for source in sources for tensor in source.values()}
    target = directory / weights.WEIGHTS
    placed = weights.place(
        plan.checkpoint, wanted, options.dtype, target, progress.written, link=options.link_weights
    )
    progress.stage("tying the graphs to the weights")
    for model, source in zip(models, sources, strict=True):
        link.link(model, source, placed.tensors)
    prefill, decode, *smaller = map(ir.to_proto, models)
    of_fewer = dict(zip(batches[1:], smaller, strict=True))
    return Traces(prefill, decode, plan.prefill_chunk, of_fewer), placed


def write_graphs(plan: Plan, traces: Traces, directory: Path) -> dict[GraphName, GraphEntry]:
    """Surgery, and everything but the manifest on the disk."""
    for name in COPIED:
        if (plan.checkpoint.directory / name).is_file():
            shutil.copyfile(plan.checkpoint.directory / name, directory / name)
    options = plan.options
    graphs = finished_graphs(
        traces,
        plan.geometry,
        options.target,
        options.cache_form,
        top_tokens=options.top_tokens,
        baseline=options.baseline,
    )
    if options.trt_decomposable:
        for model in graphs.values():
            allow_decomposition(model)
    return {name: write_graph(name, model, directory) for name, model in graphs.items()}


def manifest_of(
    plan: Plan,
    graphs: dict[GraphName, GraphEntry],
    traces: dict[TraceName, GraphEntry],
    placed: weights.PlacedWeights,
    directory: Path,
) -> Manifest:
    """The contract with whatever runs the build."""
    return Manifest(
        format_version=FORMAT_VERSION,
        model=plan.model,
        geometry=plan.geometry,
        batch=plan.options.batch,
        prefill_chunk=plan.prefill_chunk,
        dtype=plan.options.dtype,
        quantization=plan.options.weights,
        cache_dtype=plan.options.held_dtype,
        decode_attention=plan.options.cache_form.attention,
        top_tokens=plan.options.top_tokens,
        target=plan.options.target,
        graphs=graphs,
        traces=traces,
        weights=placed.describe(directory),
        linked_weights=placed.linked,
        engines={},
        versions={"python": platform.python_version()} | {n: version(n) for n in _RECORDED},
    )
