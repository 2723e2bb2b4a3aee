"""Measure a build: speed and memory, with the least that this machine could need beside them.

Prefill by prompt length, decode steps by context and active slots, what compression takes of
prefill, and peak memory; a floor comes from what must be read, written and multiplied, and from
rates probed in the same run. --baseline adds the full cache's graphs, in turn in the same run.

With --server: load on a running Triton server, and the same requests on the runtime in this
process, in turn.

examples:
  snapexport bench qwen.build
  snapexport bench qwen.build --contexts 1024 4096 16384 --batches 1 4 --baseline
  snapexport bench qwen.build --server http://127.0.0.1:8000 --clients 1 4 16
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from snapexport.bench.load.options import LoadOptions
from snapexport.bench.options import BenchOptions
from snapexport.cli import bench_view, flags
from snapexport.cli.console import ERR
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError, needs_extra

if TYPE_CHECKING:
    from snapexport.bench.load.run import LoadRun
    from snapexport.bench.run import Run

HELP = "speed and memory, with their floors; a server under load"
RESULTS = "results.json"

SHARED = {
    "repeat": "rounds: everything is measured in turn in each",
    "threads": "of ONNX Runtime and the probes (default: all cores)",
    "prepack": "rearrange a copy of the weights for decode: for up to 7 slots or more than 32",
    "seed": "other prompts",
}
SPEED = {
    "contexts": "tokens of the prompts (default: a quarter, a half and nearly all of L_max)",
    "batches": "slots that decode at a time (default: one, and all of the build's)",
    "decode_steps": "timed in a row, in each round",
    "baseline": "measure the full cache's graphs too: a build made with --baseline",
}
LOAD = {
    "server_model": "its name on the server (default: the build directory's, without its suffix)",
    "clients": "how many ask at a time",
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
    parser.add_argument("--json", action="store_true", help="print the results alone, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure, show, keep. What was measured before Ctrl-C is shown and kept too."""
    asked = _asked(arguments)
    out = arguments.out or _beside(arguments.build, "load" if arguments.server else "bench")
    with _directory(out):
        try:
            with bench_view.BenchProgress(asked.steps) as progress:
                asked.go(progress.advance)
        except SystemExit:
            if asked.has_results:
                _tell(asked.report(), out, arguments.json)
            raise
        _tell(asked.report(), out, arguments.json)
    return 0


def _asked(arguments: argparse.Namespace) -> "Run | LoadRun":
    """What is asked for, checked; nothing is loaded."""
    if arguments.server is None:
        _require_untouched(arguments, LoadOptions, LOAD, "is of a load test: give --server too")
        options = BenchOptions(**flags.values(arguments, SPEED | SHARED))
        with needs_extra("cpu"):
            from snapexport.bench.run import Run
        return Run.of(Build.open(arguments.build), options)
    _require_untouched(arguments, BenchOptions, SPEED, "is not of a load test: leave out --server")
    load = LoadOptions(server=arguments.server, **flags.values(arguments, LOAD | SHARED))
    with needs_extra("cpu"):
        from snapexport.bench.load.run import LoadRun
    return LoadRun.of(Build.open(arguments.build), load)


def _require_untouched(
    arguments: argparse.Namespace, options: type, names: dict[str, str], hint: str
) -> None:
    """Refuse a flag that would be ignored."""
    for name, given in flags.values(arguments, names).items():
        if given != getattr(options, name):
            flag = "--" + name.replace("_", "-")
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


def _tell(report: dict[str, Any], out: Path, as_json: bool) -> None:
    """Files first, then what is printed, which may break."""
    written = [RESULTS, *_keep(report, out)]
    ERR.print(escape(f"{out}: {', '.join(written)}"), style="dim", soft_wrap=True)
    if not as_json:
        bench_view.print_report(report)
    print(json.dumps(report))


def _keep(report: dict[str, Any], out: Path) -> list[str]:
    """Write the results and, where matplotlib is there, the plots; the plots' names."""
    from snapexport.bench.run import write

    write(report, out / RESULTS)
    try:
        from snapexport.bench import plots
    except ModuleNotFoundError:
        ERR.print("no plots: they need snapexport\\[eval]", style="dim")
        return []
    return plots.draw(report, out)
