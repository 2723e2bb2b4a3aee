"""Checks and times the kernels of plugins/ on a GPU.

Builds the launchers for the GPU at hand, compares both operators with float64 on fresh random data
up to 131,072 positions, runs compute-sanitizer on small cases, and times them against the bandwidth
that plain reads and copies reach in the same run, and against torch. Ends with one JSON line.
--dry-run needs no GPU: the same checks on small sizes, through the host emulation of the kernels.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snapexport.plugins import binding, reference
from snapexport.plugins.binding import (
    GatherProblem,
    GatherTensors,
    Launchers,
    SelectProblem,
    SelectTensors,
    options,
)

SNAPSTREAM = {"softmax": "causal", "vote": "sum-squares", "pool": "avg", "group": "mean"}
SNAPKV = {"softmax": "causal", "vote": "sum", "pool": "max", "group": "mean"}
SHARP = {"softmax": "candidates", "vote": "sum-squares", "pool": "max", "group": "max"}
TOLERANCE = {"float32": 1e-4, "float16": 5e-4, "bfloat16": 5e-4}
"""As a share of the last winner's vote: closer votes may be ranked either way, since tensor
cores truncate sums."""


@dataclass(frozen=True)
class Case:
    """One problem of both operators. length: of the prompt, T where 0."""

    T: int
    kv_heads: int = 8
    group: int = 4
    window: int = 8
    head_dim: int = 128
    sink: int = 4
    recent: int = 1024
    K: int = 4096
    pool_kernel: int = 31
    dtype: str = "bfloat16"
    length: int = 0
    softcap: float = 0.0
    vote: str = "snapstream"

    @property
    def prompt(self) -> int:
        return self.length or self.T

    @property
    def select(self) -> SelectProblem:
        shape = [self.kv_heads, self.group, self.window, self.T, self.head_dim]
        cache = [self.sink, self.recent, self.K, self.pool_kernel]
        vote = {"snapstream": SNAPSTREAM, "snapkv": SNAPKV, "sharp": SHARP}[self.vote]
        scores = [self.head_dim**-0.5, self.softcap]
        return SelectProblem(*shape, *cache, *scores, **options(**vote))

    @property
    def gather(self) -> GatherProblem:
        cache = [self.sink, self.recent, self.K]
        return GatherProblem(self.kv_heads, self.T, self.head_dim, *cache)


LARGE = [
    *(Case(131072, window=window) for window in (8, 16, 32)),
    Case(131072, dtype="float16", vote="snapkv", pool_kernel=7),
    Case(131072, dtype="float32", kv_heads=2),
    Case(131072, length=100_001, vote="sharp"),
    Case(65536, kv_heads=4, group=7, window=32, K=8192),
    Case(32768, head_dim=256, group=2, softcap=50.0, dtype="float16"),
    Case(32768, head_dim=80, group=1, window=64, recent=64, sink=0),
    Case(16384, head_dim=64, group=8, window=300, vote="snapkv", kv_heads=1),
    Case(16384, head_dim=256, dtype="float32", kv_heads=1, window=32),
    Case(8192, window=1, pool_kernel=1, K=1),
    Case(4096, length=700),
    Case(131072, pool_kernel=4097),  # wider than a tile
    Case(16384, pool_kernel=9001),  # wider than shared memory holds
]
SMALL = [
    replace(case, T=T, recent=24, K=60, kv_heads=2, length=length, window=min(case.window, 24))
    for case, T, length in zip(
        LARGE, [1500, *[400] * 12, 2500, 400], [0] * 11 + [333, 20, 0, 0], strict=True
    )
]
"""The same kinds of problem, for the emulator and compute-sanitizer."""


class Machine:
    """Where checks run: a GPU, or the host under --dry-run."""

    def __init__(self, library: Path, device: str) -> None:
        self.launchers, self.device = Launchers(library), device
        self.generator = torch.Generator(device).manual_seed(torch.seed() % 2**31)

    def random(self, *shape: int, dtype: str, scale: float = 1.0) -> Tensor:
        """New normal random numbers."""
        numbers = torch.randn(shape, generator=self.generator, device=self.device) * scale
        return numbers.to(getattr(torch, dtype))

    def poisoned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """An output filled with poison, to detect unwritten elements."""
        poison = -77_777 if dtype == torch.int64 else 777
        return torch.full(shape, poison, dtype=dtype, device=self.device)

    @property
    def stream(self) -> int:
        return int(torch.cuda.current_stream().cuda_stream) if self.device == "cuda" else 0


@dataclass(frozen=True)
class Data:
    """Inputs and poisoned outputs of one case, and how to launch on them."""

    machine: Machine
    case: Case
    query: Tensor
    key: Tensor
    value: Tensor
    prompt_length: Tensor
    workspace: Tensor
    positions: Tensor
    present: list[Tensor]

    @classmethod
    def fresh(cls, machine: Machine, case: Case) -> "Data":
        """New inputs. Keys and values beyond the prompt are NaN: kernels must not use them."""
        heads = case.kv_heads * case.group
        query = machine.random(heads, case.window, case.head_dim, dtype=case.dtype, scale=3.0)
        shape = (case.kv_heads, case.T, case.head_dim)
        key, value = (machine.random(*shape, dtype=case.dtype) for _ in range(2))
        key[:, case.prompt :] = value[:, case.prompt :] = torch.nan
        size = machine.launchers.workspace_bytes(case.select, case.dtype)
        workspace = torch.full((size + 256,), 0xFF, dtype=torch.uint8, device=machine.device)
        length = torch.tensor([case.prompt], device=machine.device)
        positions = machine.poisoned(case.kv_heads, case.K, dtype=torch.int64)
        slots = case.sink + case.recent + case.K
        caches = (case.kv_heads, slots, case.head_dim)
        present = [machine.poisoned(*caches, dtype=key.dtype) for _ in range(2)]
        return cls(machine, case, query, key, value, length, workspace, positions, present)

    def select(self) -> None:
        """Launch SnapKVSelect."""
        tensors = (self.query, self.key, self.prompt_length, self.positions)
        place = self.workspace.data_ptr()
        self.machine.launchers.select(
            self.case.select,
            self.case.dtype,
            SelectTensors(*(tensor.data_ptr() for tensor in tensors)),
            place + -place % 256,
            self.machine.stream,
        )

    def gather(self) -> None:
        """Launch SnapStreamGather on the selected positions."""
        tensors = (self.key, self.value, self.prompt_length, self.positions, *self.present)
        addresses = GatherTensors(*(tensor.data_ptr() for tensor in tensors))
        self.machine.launchers.gather(
            self.case.gather, self.case.dtype, addresses, self.machine.stream
        )


def check(machine: Machine, case: Case) -> str:
    """The fault of the kernels on new data, or an empty text."""
    for refusal in (
        machine.launchers.select_refusal(case.select, case.dtype),
        machine.launchers.gather_refusal(case.gather, case.dtype),
    ):
        if refusal:
            return f"refused: {refusal}"
    data = Data.fresh(machine, case)
    data.select()
    first = data.positions.clone()
    data.workspace.fill_(0x5A)
    data.select()
    if not torch.equal(first, data.positions):
        return "two runs on the same data differ"
    wrong = wrong_positions(data)
    if wrong:
        return f"SnapKVSelect: {wrong}"
    data.gather()
    for cache, present in zip((data.key, data.value), data.present, strict=True):
        expected = reference.gather(case.gather, cache, data.positions, case.prompt)
        if not torch.equal(present, expected):
            return "SnapStreamGather: a slot differs"
    return ""


def wrong_positions(data: Data) -> str:
    """One KV head at a time: float64 scores are [G, W, T]."""
    p = data.case.select
    p.kv_heads = 1
    heads = data.query.reshape(data.case.kv_heads, p.group, p.window, p.head_dim)
    for head, query in enumerate(heads):
        key = data.key[head : head + 1]
        scores = reference.scores(p, query, key, data.case.prompt)
        kept = data.positions[head : head + 1]
        wrong = reference.complaint(p, scores, kept, data.case.prompt, TOLERANCE[data.case.dtype])
        if wrong:
            return f"KV head {head}: {wrong}"
    return ""


def seconds(run: Callable[[], None], repeats: int = 30) -> float:
    """Median of a GPU's time, each run on a cold L2."""
    chill = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(repeats + 3):
        chill.zero_()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore
        before.record()
        run()
        after.record()
        torch.cuda.synchronize()
        times.append(float(before.elapsed_time(after)) / 1e3)
    return sorted(times[3:])[repeats // 2]


def bandwidths() -> dict[str, float]:
    """Bytes per second that a sum reads, and that a copy reads and writes, of 1 GiB."""
    block = torch.ones(2**28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(block)
    size = block.numel() * 4
    copy = seconds(lambda: void(target.copy_(block)))
    return {"read": size / seconds(lambda: void(block.sum())), "copy": 2 * size / copy}


def void(_: object) -> None:
    """Drop a result."""


def torch_compression(data: Data) -> None:
    """Both operators in torch, in the keys' own type."""
    p = data.case.select
    span = reference.eligible(p, data.case.prompt)
    queries = data.query.reshape(p.kv_heads, -1, p.head_dim)
    scores = (queries @ data.key.mT) * p.scale
    share = scores[..., span.start : span.stop].softmax(-1, dtype=torch.float32)
    votes = share.reshape(p.kv_heads, p.group, p.window, -1).sum(2)
    pooled = torch.nn.functional.avg_pool1d(votes, p.pool_kernel, 1, p.pool_kernel // 2).mean(1)
    kept = pooled.topk(p.K).indices.sort(-1).values + p.sink
    window = torch.arange(p.sink + p.recent, device="cuda").expand(p.kv_heads, -1)
    rows = torch.cat([window, kept], 1)[..., None].expand(-1, -1, p.head_dim)
    for cache in (data.key, data.value):
        cache.gather(1, rows)


def timing(machine: Machine, case: Case, speed: dict[str, float]) -> dict[str, Any]:
    """Times of a case, and their ratios to the time that its memory traffic would take.

    Rooflines: keys read once (no algorithm does less), keys read twice (as our two passes do); in
    both the gather's rows are read and written.
    """
    data = Data.fresh(machine, case)
    times = {"select": seconds(data.select), "gather": seconds(data.gather)}
    times["torch"] = seconds(lambda: torch_compression(data), repeats=10)
    keys = data.key.numel() * data.key.element_size() / speed["read"]
    moved = 4 * data.present[0].numel() * data.key.element_size() / speed["copy"]
    ours = times["select"] + times["gather"]
    return {
        "case": described(case),
        "microseconds": {name: round(value * 1e6, 1) for name, value in times.items()},
        "of_roofline_two_reads": round((2 * keys + moved) / ours, 3),
        "of_roofline_one_read": round((keys + moved) / ours, 3),
        "times_faster_than_torch": round(times["torch"] / ours, 2),
    }


def described(case: Case) -> dict[str, Any]:
    """Write a case down."""
    return {name: getattr(case, name) for name in Case.__dataclass_fields__}


def sanitize(library: Path) -> dict[str, str]:
    """Results of compute-sanitizer's tools on the small cases, in separate processes."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return {"skipped": "compute-sanitizer is not installed"}
    verdicts = {}
    # Without torch's memory pool, compute-sanitizer knows each tensor's bounds.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    for kind in ("memcheck", "racecheck", "synccheck"):
        command = [tool, "--tool", kind, "--error-exitcode", "9", sys.executable, __file__]
        command += ["--only-small", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        output = done.stdout[-2000:] + done.stderr[-500:]
        verdicts[kind] = output if done.returncode else "clean"
    return verdicts


def checks(machine: Machine, cases: list[Case]) -> Iterator[dict[str, Any]]:
    """Each case with its fault."""
    for case in cases:
        wrong = check(machine, case)
        print(f"{wrong or 'right'}: {case}", file=sys.stderr)
        yield {"case": described(case), "wrong": wrong}


def on_gpu(library: Path) -> dict[str, Any]:
    """All of it."""
    machine = Machine(library, "cuda")
    results = list(checks(machine, SMALL + LARGE))
    speed = bandwidths()
    timed = [timing(machine, case, speed) for case in LARGE[:3]]
    return {
        "gpu": torch.cuda.get_device_name(),
        "checks": results,
        "sanitizer": sanitize(library),
        "gigabytes_per_second": {name: round(value / 1e9) for name, value in speed.items()},
        "timings": timed,
    }


def dry_run(library: Path) -> dict[str, Any]:
    """The small cases on the host. No kernel is launched."""
    results = list(checks(Machine(library, "cpu"), SMALL))
    return {"gpu": None, "dry_run": "host emulation: nothing ran on a GPU", "checks": results}


def build(folder: Path, on_host: bool) -> Path:
    """Compile the launchers for the host's emulation, or for the GPU at hand."""
    library = folder / "launchers.so"
    if on_host:
        binding.compile_library(binding.emulator_command(library))
    else:
        major, minor = torch.cuda.get_device_capability()
        binding.compile_library(binding.gpu_command(library, f"{major}{minor}", debug=True))
    return library


def report(dry: bool) -> dict[str, Any]:
    """Build, run, and say what it ran on."""
    with tempfile.TemporaryDirectory() as scratch:
        library = build(Path(scratch), dry)
        found = dry_run(library) if dry else on_gpu(library)
    command = "python tools/gpu_check.py" + (" --dry-run" if dry else "")
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"command": command} | versions | found


def failed(found: dict[str, Any]) -> bool:
    """Whether a check went wrong, or the sanitizer found something."""
    verdicts = [text for name, text in found.get("sanitizer", {}).items() if name != "skipped"]
    return any(one["wrong"] for one in found["checks"]) or any(v != "clean" for v in verdicts)


def main() -> None:
    """Print one JSON line; exit 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="on the host, without a GPU")
    parser.add_argument("--only-small", type=Path, metavar="LIBRARY", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    arguments = parser.parse_args()
    if not arguments.dry_run and not torch.cuda.is_available():
        raise SystemExit("error: torch finds no GPU\n\nhint: --dry-run needs none")
    if arguments.only_small:
        results = list(checks(Machine(arguments.only_small, "cuda"), SMALL))
        raise SystemExit(any(one["wrong"] for one in results))
    found = report(arguments.dry_run)
    text = json.dumps(found)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    raise SystemExit(failed(found))


if __name__ == "__main__":
    main()
