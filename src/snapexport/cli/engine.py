"""Build TensorRT engines for the present GPU from a build's graphs (--target tensorrt).

A plan for each graph goes into BUILD/engines/, and the manifest says for which GPUs it is. What was
finished stays when a later one fails or is interrupted, and is not built again. docs/tensorrt.md
has the whole way, with what each flag trades.

examples:
  snapexport engine llama.build --estimate
  snapexport engine llama.build --plugins libsnapexport_loadable.so --workspace 8GiB
  snapexport engine llama.build --strip-plan --hardware-compat same-compute-capability
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from snapexport.cli import flags
from snapexport.cli.console import ERR, OUT, BuildProgress
from snapexport.contract.build_directory import Build
from snapexport.contract.bytes import parsed, spelled
from snapexport.contract.engines import EngineEntry
from snapexport.engines import EngineOptions, build_engines, require_target
from snapexport.engines.memory import Estimate, estimate

HELP = "a build for TensorRT -> its engines, on this GPU"

CHOICES = {
    "hardware_compat": "other GPUs that run the plans too: those from Ampere on, or those of the "
    "same capability; slower",
    "version_compatible": "newer TensorRTs run them too; slower",
    "strip_plan": "leave the weights out; they are taken from the build when a plan is loaded",
    "refit": "allow other weights of the same shapes later; slower",
    "optimization_level": "0 to 5: how long to search for faster kernels",
    "overwrite": "build again what is there already",
}
FILES = {
    "plugins": "the fused operators: libsnapexport_loadable.so (docs/plugins.md)",
    "timing_cache": "measured times of kernels, read and extended (default: one in the build)",
}
WORKSPACE = {
    "workspace": "GPU memory for a single layer's intermediates, like 8GiB (default: all there is)"
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the fields of EngineOptions, --estimate and --json."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    parser.add_argument(
        "--graphs", nargs="+", metavar="GRAPH", help="such as prefill and decode (default: all)"
    )
    for name, text in FILES.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=Path, metavar="FILE", help=text)
    parser.add_argument("--workspace", type=parsed, metavar="SIZE", help=WORKSPACE["workspace"])
    flags.add_fields(parser, EngineOptions, CHOICES)
    parser.add_argument(
        "--estimate",
        action="store_true",
        help="only print what it takes at least; needs no TensorRT and no GPU",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Estimate, or build and say what came of it."""
    given = flags.values(arguments, CHOICES | FILES | WORKSPACE)
    options = EngineOptions(graphs=tuple(arguments.graphs or ()), **given)
    build = Build.open(arguments.build)
    require_target(build)
    graphs = options.graphs_of(build.manifest)
    needed = estimate(build.manifest, graphs, stripped=options.strip_plan)
    if arguments.estimate:
        _tell_estimate(needed, as_json=arguments.json)
        return 0
    _note(build, needed)
    with BuildProgress() as progress:
        name = build_engines(build, options, progress)
    entry = Build.open(arguments.build).manifest.engines[name]
    if arguments.json:
        print(json.dumps({"name": name} | entry.model_dump()))
    else:
        _print_entry(name, entry)
    return 0


def _note(build: Build, needed: Estimate) -> None:
    if build.manifest.dtype == "fp32":
        ERR.print("note: the build is fp32; --dtype bf16 or fp16 halves its memory, and is faster")
    ERR.print(
        f"at least {spelled(needed.host)} of memory and {spelled(needed.gpu)} on the GPU are used"
    )


def _tell_estimate(needed: Estimate, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_estimate_report(needed)))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("building takes at least", "memory", "GPU memory", "plan on disk"):
        table.add_column(heading, justify="left" if heading.endswith("least") else "right")
    for name, needs in needed.graphs.items():
        table.add_row(
            f"[bold]{name}[/]", spelled(needs.host), spelled(needs.gpu), spelled(needs.plan)
        )
    OUT.print(table)
    OUT.print(
        f"one after the other: {spelled(needed.host)} of memory, {spelled(needed.gpu)} on the GPU, "
        f"{spelled(needed.disk)} on disk; and what single layers need (--workspace)"
    )
    OUT.print(f"running takes at least {spelled(needed.running)} on the GPU")


def _estimate_report(needed: Estimate) -> dict[str, Any]:
    graphs = {
        name: {"host_bytes": needs.host, "gpu_bytes": needs.gpu, "plan_bytes": needs.plan}
        for name, needs in needed.graphs.items()
    }
    return {
        "graphs": graphs,
        "host_bytes": needed.host,
        "gpu_bytes": needed.gpu,
        "disk_bytes": needed.disk,
        "running_gpu_bytes": needed.running,
    }


def _print_entry(name: str, entry: EngineEntry) -> None:
    OUT.print(f"[bold]engines/{name}[/]: TensorRT {entry.tensorrt}, {entry.gpu}, {_choices(entry)}")
    for graph, plan in entry.plans.items():
        OUT.print(
            f"  {graph}: {spelled(plan.size)}, {spelled(plan.device_memory)} of activations",
            markup=False,
        )


def _choices(entry: EngineEntry) -> str:
    """What its name does not say of it."""
    told = [f"optimization level {entry.optimization_level}"]
    if entry.workspace is not None:
        told.append(f"workspace {spelled(entry.workspace)}")
    if entry.plugins:
        told.append(f"plugins {escape(Path(entry.plugins.file).name)}")
    return ", ".join(told)
