"""Build engines from a build: TensorRT's for this machine's GPU, or TensorRT for RTX's for any.

For ONNX Runtime the weights are packed for this machine's processor: a copy on the disk in the
order in which ONNX Runtime's kernels read. Sessions map this file; otherwise each rearranges a copy
of its own in memory.

A build with --target tensorrt is compiled on the GPU that will run it; one with --target
tensorrt-rtx ahead of time, on any machine, for the GPUs of --compute-capability. An engine for each
graph goes into BUILD/engines/, and the manifest records the GPUs that can run it. Finished engines
stay when a later one fails or is interrupted, and are not built again. docs/how-to/tensorrt.md
explains the flags.

examples:
  snapexport engine qwen.build
  snapexport engine llama.build --estimate
  snapexport engine llama.build --workspace 8GiB \\
      --plugins libsnapexport_loadable.so
  snapexport engine llama.build --strip-weights \\
      --hardware-compat same-compute-capability
  snapexport engine llama-rtx.build --compute-capability 8.9 12.0
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from snapexport.builder.engines import EngineOptions, build_engines
from snapexport.builder.engines.memory import Estimate, estimate
from snapexport.cli import flags
from snapexport.cli.console import ERR, OUT
from snapexport.cli.progress import BuildProgress, add_progress
from snapexport.contract.build_directory import Build
from snapexport.contract.engines import FOLDER, EngineEntry
from snapexport.contract.memory import spelled
from snapexport.contract.targets import TENSORRT_RTX, EngineLibrary, capabilities
from snapexport.contract.tensorrt_bindings import library_of
from snapexport.errors import UserError, needs_extra

HELP = "build -> engines of TensorRT for this GPU or RTX GPUs; packed weights for this CPU"

CHOICES = {
    "graphs": "graphs to build, such as prefill and decode (default: all)",
    "plugins": "library of fused operators, libsnapexport_loadable.so (docs/how-to/tensorrt.md)",
    "hardware_compat": "other GPUs that can run the engines: Ampere and later, or those of the "
    "same compute capability; slower",
    "version_compatible": "newer versions of TensorRT can run the engines; slower",
    "strip_weights": "leave the weights out: they are read from the build when an engine is loaded",
    "refit": "let weights be replaced later by others of the same shapes; slower",
    "optimization_level": "0 to 5: how long to search for faster kernels",
    "timing_cache": "file of measured kernel times, read and extended (default: in the build)",
    "overwrite": "build existing engines again",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the fields of EngineOptions, --estimate and --json."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    parser.add_argument(
        "--compute-capability",
        nargs="+",
        default=(),
        metavar="X.Y",
        help="GPUs to build for, such as 8.9 12.0; for --target tensorrt-rtx only (default: all "
        f"that it has: {', '.join(TENSORRT_RTX.capabilities)})",
    )
    parser.add_argument(
        "--workspace",
        type=flags.nbytes,
        metavar=flags.SIZE,
        help="most GPU memory for one layer's intermediates, like 8GiB (default: no limit)",
    )
    flags.add_fields(parser, EngineOptions, CHOICES)
    parser.add_argument(
        "--estimate",
        action="store_true",
        help="only print the least memory and disk space needed; works without TensorRT and GPU",
    )
    add_progress(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print an estimate, or build and print the result."""
    options = EngineOptions(
        workspace=arguments.workspace,
        compute_capabilities=tuple(arguments.compute_capability),
        **flags.values(arguments, CHOICES),
    )
    build = Build.open(arguments.build)
    build.require_run(command="engine")
    if not capabilities(build.manifest.target).compiled:
        return _pack(build, options, arguments)
    library = library_of(build)
    options.require_supported(library)
    graphs = options.graphs_of(build.manifest)
    needed = estimate(build.manifest, graphs, stripped=options.strip_weights)
    if arguments.estimate:
        _print_estimate(needed, as_json=arguments.json)
        return 0
    _print_needs(build, library, needed)
    with BuildProgress() as progress:
        name = build_engines(build, options, progress)
    entry = Build.open(arguments.build).manifest.engines[name]
    if arguments.json:
        print(json.dumps({"name": name} | entry.model_dump()))
    else:
        _print_entry(library.title, name, entry)
    return 0


def _pack(build: Build, options: EngineOptions, arguments: argparse.Namespace) -> int:
    """Pack the weights, and print how large they are."""
    options.require_packing(build.manifest.target)
    if arguments.estimate:
        raise UserError(
            "--estimate is for TensorRT's engines", "packed weights take twice the build's on disk"
        )
    with BuildProgress() as progress, needs_extra("build"):
        from snapexport.builder.engines.packing import pack

        graphs = options.graphs_of(build.manifest)
        made = pack(build, graphs, overwrite=options.overwrite, progress=progress)
    if arguments.json:
        print(made.model_dump_json())
    else:
        OUT.print(
            f"engines/{FOLDER}: {', '.join(made.graphs)}, {spelled(made.weights.size)} of weights "
            f"for this processor and ONNX Runtime {made.version}"
        )
    return 0


def _print_needs(build: Build, library: EngineLibrary, needed: Estimate) -> None:
    if build.manifest.dtype == "fp32":
        ERR.print(
            "note: this is an fp32 build; --dtype bf16 or fp16 halves its memory and is faster"
        )
    gpu = "" if library.capabilities else f" and {spelled(needed.gpu)} of GPU memory"
    ERR.print(f"needs at least {spelled(needed.host)} of memory{gpu}")


def _print_estimate(needed: Estimate, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_estimate_report(needed)))
        return
    table = Table(box=None, pad_edge=False)
    for heading in (
        "building needs at least",
        "memory",
        "GPU memory",
        "engine on disk",
        "scratch, running",
    ):
        table.add_column(heading, justify="left" if heading.endswith("least") else "right")
    for name, needs in needed.graphs.items():
        table.add_row(
            Text(name, style="bold"),
            *map(spelled, (needs.host, needs.gpu, needs.engine, needs.scratch)),
        )
    OUT.print(table)
    OUT.print(
        f"one after the other: {spelled(needed.host)} of memory, {spelled(needed.gpu)} of GPU "
        f"memory, {spelled(needed.disk)} on disk; and memory for single layers (--workspace)"
    )
    OUT.print(f"running needs at least {spelled(needed.running)} of GPU memory")


def _estimate_report(needed: Estimate) -> dict[str, Any]:
    graphs = {
        name: {
            "host_bytes": needs.host,
            "gpu_bytes": needs.gpu,
            "engine_bytes": needs.engine,
            "scratch_bytes": needs.scratch,
        }
        for name, needs in needed.graphs.items()
    }
    return {
        "graphs": graphs,
        "host_bytes": needed.host,
        "gpu_bytes": needed.gpu,
        "disk_bytes": needed.disk,
        "running_gpu_bytes": needed.running,
    }


def _print_entry(title: str, name: str, entry: EngineEntry) -> None:
    gpus = entry.gpu or f"compute capability {', '.join(entry.compute_capabilities)}"
    facts = ", ".join([f"{title} {entry.version}", gpus, *_choices(entry)])
    OUT.print(Text.assemble((f"engines/{name}", "bold"), f": {facts}"))
    for graph, engine in entry.graphs.items():
        OUT.print(
            f"  {graph}: {spelled(engine.size)}, {spelled(engine.device_memory)} of activations"
        )


def _choices(entry: EngineEntry) -> list[str]:
    """The choices that the name of the engine doesn't show."""
    choices = [f"optimization level {entry.optimization_level}"] if entry.gpu else []
    if entry.workspace is not None:
        choices.append(f"workspace {spelled(entry.workspace)}")
    if entry.plugins:
        choices.append(f"plugins {Path(entry.plugins.file).name}")
    return choices
