"""Decode, throughput and prefill at Llama-3.1-8B's shape, by ONNX Runtime's CUDA provider.

Makes a checkpoint of random weights (16 GB) and builds of it, and measures (a) decode by context,
full cache and SnapStream, (b) the largest batch and its throughput at the same bytes of decode
caches, (c) what compression adds to prefill; each beside the floor that the GPU's memory sets.
Prints tables and, as the last line, JSON. A stage that is done is not done again: call it as often
as it takes. --dry-run does all of it on the CPU, at tiny sizes, and says nothing of a GPU.

    python -m tools.gpu_bench --out gpu_bench --stage checkpoint build
    python -m tools.gpu_bench --out gpu_bench --stage context equal-memory overhead
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from snapexport.bench import machine
from snapexport.contract.errors import UserError
from snapexport.runtime.cuda_device import DeviceError
from snapexport.runtime.onnxruntime_devices import Device, Host
from snapexport.runtime.onnxruntime_gpu import Gpu

from . import builds
from .checkpoint import write_checkpoint
from .measure import Bench
from .results import Results
from .setting import LARGE, SMALL, Setting
from .table import tables

STAGES = ("checkpoint", "build", "context", "equal-memory", "overhead")
DRY_RUN = "on the CPU, at tiny sizes: it says nothing of a GPU"


def main(argv: list[str] | None = None) -> int:
    """Run the stages; 2 for what the user has to mend."""
    arguments = parse(argv)
    setting = SMALL if arguments.dry_run else LARGE
    changed = {"dtype": arguments.dtype, "cache_budget": arguments.cache_budget}
    setting = replace(setting, **{name: value for name, value in changed.items() if value})
    try:
        results = run(setting, arguments)
    except (UserError, DeviceError) as error:
        hint = error.hint if isinstance(error, UserError) else "see what `nvidia-smi` says"
        print(f"error: {error.args[0]}\n\nhint: {hint}", file=sys.stderr)
        return 2
    for table in tables(results):
        print(table, end="\n\n")
    print(json.dumps(results.report()))
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stage", nargs="+", choices=("all", *STAGES), default=["all"])
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("build/gpu_bench"))
    parser.add_argument("--dtype", choices=("fp16", "bf16"), help="default: fp16")
    parser.add_argument(
        "--cache-budget", type=int, metavar="BYTES", help="of stage equal-memory (default: 32 GiB)"
    )
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, in seconds")
    return parser.parse_args(argv)


def run(setting: Setting, arguments: argparse.Namespace) -> Results:
    """The stages that were asked for, in their order."""
    out, checkpoint = arguments.out, arguments.out / "checkpoint"
    out.mkdir(parents=True, exist_ok=True)
    results = Results(out / "results.json")
    _require_same(results, setting)
    bench = Bench(setting, out / "builds", results, _device(arguments.dry_run), _tell)
    actions = {
        "checkpoint": lambda: _checkpoint(checkpoint, setting),
        "build": lambda: builds.make(setting, out / "builds", checkpoint),
        "context": bench.context,
        "equal-memory": bench.equal_memory,
        "overhead": bench.overhead,
    }
    for stage in STAGES if "all" in arguments.stage else arguments.stage:
        started = time.perf_counter()
        actions[stage]()
        _tell(f"{stage}: {time.perf_counter() - started:.0f} s")
    results.set("machine", machine.described())
    results.set("dry_run", DRY_RUN if arguments.dry_run else None)
    return results


def _checkpoint(directory: Path, setting: Setting) -> None:
    if not (directory / "model.safetensors").is_file():
        write_checkpoint(directory, setting.shape, setting.dtype)


def _device(dry_run: bool) -> Callable[[], Device]:
    return Host if dry_run else Gpu


def _require_same(results: Results, setting: Setting) -> None:
    """Raise UserError for a folder of other sizes: its builds and rows would be mixed with ours."""
    now = json.loads(json.dumps(asdict(setting)))
    if results.get("setting") not in (None, now):
        raise UserError("--out holds what was made with other settings", "choose another --out")
    results.set("setting", now)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
