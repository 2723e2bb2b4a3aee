"""Measure a build: speed and memory, with the least that this machine could need beside them.

Prefill by prompt length, decode steps by context and active batch slots, the share of compression
in prefill, and peak memory. The roofline follows from what must be read, written and multiplied,
and from rates probed in the same run. --baseline adds the full cache's graphs, in turn
in the same run.

With --server: load on a running Triton server, and the same requests on the runtime in this
process, in turn.

examples:
  snapexport bench qwen.build
  snapexport bench qwen.build --contexts 1024 4096 16384 --batches 1 4 --baseline
  snapexport bench qwen.build --backend openvino --precision bf16
  snapexport bench qwen.build --server http://127.0.0.1:8000 --clients 1 4 16
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from snapexport.cli import bench_view, flags
from snapexport.cli.console import ERR, print_estimate
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError, flag_of, needs_extra
from snapexport.measure.bench.options import BenchOptions, LoadOptions
from snapexport.measure.bench.results import Results

if TYPE_CHECKING:
    from snapexport.measure.bench.speed import Plan

HELP = "speed and memory, with their rooflines; a server under load"
RESULTS = "results.json"

SHARED = {
    "repeat": "rounds: everything is measured in turn in each",
    "threads": "of the backend and the probes (default: all cores)",
    "prepack": "rearrange a copy of the weights for decode: for up to 7 slots or more than 32",
    "seed": "other prompts",
}
SPEED = {
    "contexts": "tokens of the prompts (default: an eighth and a half of L_max)",
    "batches": "batch slots that decode at a time (default: one, and all of the build's)",
    "decode_steps": "timed in a row, in each round",
    "baseline": "measure the full cache's graphs too: a build made with --baseline",
    "backend": "what runs the graphs",
    "precision": "what OpenVINO calculates in (default: f32)",
}
LOAD = {
    "server_model": "its name on the server (default: the build directory's, without its suffix)",
    "clients": "how many send requests at a time",
    "requests": "of each client, in each round",
    "prompt_tokens": "of each request (default: half of L_max)",
    "max_tokens": "of each answer",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The fields of both kinds of options, where the results go, and --json."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    flags.add_fields(parser, BenchOptions, SPEED | SHARED)
    load = parser.add_argument_group("a server under load")
    load.add_argument("--server", metavar="URL", help="Triton's HTTP address")
    flags.add_fields(load, LoadOptions, LOAD)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="results and plots (default: BUILD.bench, and BUILD.load with --server)",
    )
    parser.add_argument("--json", action="store_true", help="print only the results, as JSON")


@dataclass(frozen=True)
class Job:
    """A measurement that was checked; nothing is loaded.

    print_expected: its time and memory; None where a server's speed decides.
    """

    results: Results
    run: Callable[[], None]
    print_expected: Callable[[], None] | None = None


def run(arguments: argparse.Namespace) -> int:
    """Measure, show, keep. What was measured before Ctrl-C is shown and kept too."""
    with needs_extra("cpu"):
        job = _speed(arguments) if arguments.server is None else _load(arguments)
    out = arguments.out or _beside(arguments.build, "load" if arguments.server else "bench")
    with _directory(out):
        if job.print_expected and ERR.is_terminal:
            job.print_expected()
        try:
            with bench_view.BenchProgress() as progress:
                job.results.progress = progress.update
                job.run()
                job.results.complete = True
        except SystemExit:
            if any(job.results.sections.values()):
                _show(job.results, out, arguments.json)
            raise
        _show(job.results, out, arguments.json)
    return 0


def _speed(arguments: argparse.Namespace) -> Job:
    from snapexport.measure.bench import machine, probes, speed

    _require_untouched(arguments, LoadOptions, LOAD, "is of a load test: give --server too")
    options = BenchOptions(**flags.values(arguments, SPEED | SHARED))
    build = Build.open(arguments.build)
    build.require_run(command="bench")
    plan = speed.Plan.of(build, options)
    threads = options.threads or machine.cores()
    results = Results("speed", "snapexport bench", plan.options, threads)
    results.summary, results.about = speed.summary, plan.about()
    return Job(
        results,
        lambda: speed.run(
            plan, results, probes.probes(threads, options.backend, options.precision)
        ),
        lambda: _print_expected(plan),
    )


def _print_expected(plan: "Plan") -> None:
    from snapexport.measure.bench.estimate import estimate

    expected = estimate(plan)
    caches = " and ".join(spec.name for spec in plan.specs)
    contexts = ", ".join(map(str, plan.contexts))
    what = f"{caches}, prompts of {contexts} tokens, {plan.options.repeat} rounds"
    print_estimate(what, expected.seconds, expected.nbytes)


def _load(arguments: argparse.Namespace) -> Job:
    from snapexport.measure.bench import load

    _require_untouched(arguments, BenchOptions, SPEED, "is not of a load test: leave out --server")
    options = LoadOptions(server=arguments.server, **flags.values(arguments, LOAD | SHARED))
    plan = load.LoadPlan.of(Build.open(arguments.build), options)
    results = Results("load", "snapexport bench --server", plan.options, options.threads)
    results.about = plan.about()
    return Job(results, lambda: load.run(plan, results))


def _require_untouched(
    arguments: argparse.Namespace, options: type, names: dict[str, str], hint: str
) -> None:
    """Refuse a flag that would be ignored."""
    for name, given in flags.values(arguments, names).items():
        if given != getattr(options, name):
            flag = flag_of(name)
            raise UserError(f"{flag} means nothing here", f"{flag} {hint}")


def _beside(build: Path, kind: str) -> Path:
    whole = build.absolute()
    return whole.with_name(f"{whole.name}.{kind}")


@contextmanager
def _directory(out: Path) -> Iterator[None]:
    """A place for the results, made at once; gone again if nothing came of it. Raises UserError."""
    is_ours = not out.exists() or (out / RESULTS).is_file()
    if not is_ours and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists, and holds no results of a bench", "choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):
            out.rmdir()  # only if it is empty


def _show(results: Results, out: Path, as_json: bool) -> None:
    """Files first, then what is printed, which may break."""
    results.path = out / RESULTS
    results.write()
    written = [RESULTS, *_plots(results, out)]
    ERR.print(f"{out}: {', '.join(written)}", style="dim", soft_wrap=True)
    report = results.as_json()
    if not as_json:
        bench_view.print_report(report)
    if as_json or not sys.stdout.isatty():  # a page of JSON helps nobody at a terminal
        print(json.dumps(report))


def _plots(results: Results, out: Path) -> list[str]:
    """Draw them where matplotlib is there; their names."""
    try:
        from snapexport.measure.bench import plots
    except ModuleNotFoundError:
        ERR.print("no plots: they need snapexport[eval]", style="dim")
        return []
    return plots.draw(results.as_json(), out)
