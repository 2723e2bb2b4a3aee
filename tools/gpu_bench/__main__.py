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
from typing import Any

from snapexport.bench import machine
from snapexport.contract.errors import UserError, first_line
from snapexport.runtime.backend import DeviceError
from snapexport.runtime.open_executor import BackendName
from snapexport.runtime.ort.cuda import Cuda
from snapexport.runtime.ort.devices import Cpu, Device

from . import builds, gpu
from .checkpoint import write_checkpoint
from .measure import Bench
from .results import Results
from .setting import LARGE, SMALL, Setting
from .table import tables

MEASURING = ("context", "equal-memory", "overhead")
STAGES = ("checkpoint", "build", *MEASURING)
LESS_MEMORY = (
    "if the GPU's memory is full, a smaller --cache-budget with another --out takes less of it; "
    "what was measured is kept in results.json"
)
DRY_RUN = "on the CPU, at tiny sizes: it says nothing of a GPU"


def main(argv: list[str] | None = None) -> int:
    """Run the stages; 2 for what the user has to mend."""
    arguments = parse(argv)
    setting = SMALL if arguments.dry_run else LARGE
    changed = {"dtype": arguments.dtype, "cache_budget": arguments.cache_budget}
    changed = {name: value for name, value in changed.items() if value is not None}
    try:
        results = run(replace(setting, **changed), arguments)
    except UserError as error:
        return _failed(error.message, error.hint)
    except DeviceError as error:
        return _failed(str(error), "see what `nvidia-smi` says")
    except Exception as error:  # ONNX Runtime's exceptions share no narrower public base
        if not type(error).__module__.startswith("onnxruntime."):
            raise
        return _failed(f"ONNX Runtime: {first_line(error)}", LESS_MEMORY)
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
    asked = STAGES if "all" in arguments.stage else arguments.stage
    made_with = json.loads(json.dumps(asdict(setting)))
    _require_same(results, "setting", made_with, "what was made with other settings")
    if not set(MEASURING).isdisjoint(asked):
        _describe(results, arguments.dry_run)
    bench = Bench(setting, out / "builds", results, *_device(arguments.dry_run), _tell)
    actions = {
        "checkpoint": lambda: _checkpoint(checkpoint, setting),
        "build": lambda: builds.make(setting, out / "builds", checkpoint),
        "context": bench.context,
        "equal-memory": bench.equal_memory,
        "overhead": bench.overhead,
    }
    for stage in (stage for stage in STAGES if stage in asked):
        started = time.perf_counter()
        actions[stage]()
        _tell(f"{stage}: {time.perf_counter() - started:.0f} s")
    return results


def _checkpoint(directory: Path, setting: Setting) -> None:
    if not (directory / "model.safetensors").is_file():
        write_checkpoint(directory, setting.shape, setting.dtype)


def _device(dry_run: bool) -> tuple[BackendName, Callable[[], Device]]:
    return ("onnxruntime", Cpu) if dry_run else ("onnxruntime-cuda", Cuda)


def _describe(results: Results, dry_run: bool) -> None:
    """Before the first row: a command that is killed leaves rows that say what they are of."""
    if not dry_run:
        _require_same(results, "gpu", gpu.described(), "rows of another GPU, or of another driver")
    results.set("machine", machine.described())
    results.set("dry_run", DRY_RUN if dry_run else None)


def _require_same(results: Results, name: str, now: dict[str, Any], other: str) -> None:
    """Raise UserError for a folder of others: its builds and rows would be mixed with ours."""
    if results.get(name) not in (None, now):
        raise UserError(f"--out holds {other}", "choose another --out")
    results.set(name, now)


def _failed(message: str, hint: str) -> int:
    print(f"error: {message}\n\nhint: {hint}", file=sys.stderr)
    return 2


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
