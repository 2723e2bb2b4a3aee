"""Runs experiments by name: `python -m tools.studies.speed context overhead`.

Each writes NAME.json and NAME.png to --out, and prints its tables and, as a last line, its JSON.
`all` runs every experiment of docs/speed.md; `tables` alone shows existing results. Builds
are kept below --work, and made again when the code changes; checkpoints and the peers' files are
kept there by name.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from snapexport.errors import UserError, require_fields
from snapexport.measure.bench.turns import Row
from snapexport.runtime.engine.backend import DeviceError
from tools.studies.speed import page
from tools.studies.speed.device import DRY_RUN, Device
from tools.studies.speed.experiments import EXPERIMENTS, PAGE
from tools.studies.speed.record import Results, read
from tools.studies.speed.setup import Setup

ERR = Console(stderr=True, markup=False, emoji=False)
RESULTS = Path("tools/studies/speed/results")
WORK = Path("build/bench")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    listed = "\n".join(f"  {name:13} {one.help}" for name, one in EXPERIMENTS.items())
    made = argparse.ArgumentParser(
        prog="python -m tools.studies.speed",
        description=__doc__,
        epilog=f"experiments:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("names", nargs="+", metavar="EXPERIMENT", choices=[*EXPERIMENTS, "all", "tables"])
    add("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    add("--out", type=Path, help=f"for results (default: {RESULTS}; on a GPU below --work)")
    add("--work", type=Path, default=WORK, help="default: %(default)s")
    add("--quick", action="store_true", help="tiny sizes, to see that all goes")
    add("--dry-run", action="store_true", help="with --device cuda: on the CPU, at tiny sizes")
    add("--resume", action="store_true", help="keep the rows of --out, and measure what is missing")
    add("--prepare", action="store_true", help="make checkpoint and builds, and measure nothing")
    add("--set", nargs="+", metavar="NAME=JSON", default=[], help="an experiment's own options")
    add("--rounds", type=int, help="other than the experiment's own")
    add("--threads", type=int, default=2, help="of the CPU (default: %(default)s)")
    add("--dtype", choices=("fp16", "bf16"), default="fp16", help="on a GPU (default: %(default)s)")
    add("--cache-budget", type=int, metavar="BYTES", help="of equal_memory's decode caches")
    add(
        "--peers-python",
        type=Path,
        help="interpreter of tools/studies/speed/peers/peers.txt",
    )
    add("--kvpress-python", type=Path, help="of tools/studies/speed/peers/kvpress.txt")
    add("--openvino-python", type=Path, help="of tools/studies/speed/peers/openvino.txt")
    add("--dynamo-python", type=Path, help="interpreter with Dynamo, for cluster (default: this)")
    add("--write", type=Path, help="tables: into this page, in place of its former")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named experiments. Returns 2 for wrong arguments, 130 if interrupted."""
    arguments = parser().parse_args(argv)
    try:
        setup = _setup(arguments)
        out = arguments.out or _results_of(setup)
        status = measure(arguments, setup, out)
        if "tables" in arguments.names and not status:
            _show(arguments.write, out)
        return status
    except UserError as error:
        return _failed("", error)


def measure(arguments: argparse.Namespace, setup: Setup, out: Path) -> int:
    """Run each experiment; its results are written even if it fails."""
    status = 0
    options = {name: _options(arguments, setup, name) for name in _names(arguments)}
    columns = (
        TextColumn("{task.description}", markup=False),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=ERR) as progress:
        for name, chosen in options.items():
            update = partial(_update, progress, progress.add_task(name), name)
            try:
                if arguments.prepare:
                    _prepare(setup, name, chosen)
                    continue
                results = Results(name, _command(arguments, name), chosen, progress=update)
                results.path = out / f"{name}.json"
                _run(setup, results, arguments.resume)
            except KeyboardInterrupt:
                return 130
            except UserError as error:  # the others are measured all the same
                status = _failed(f"{name}: ", error)
            except DeviceError as error:
                status = _failed(f"{name}: ", UserError(str(error), "see what `nvidia-smi` says"))
    return status


def _update(progress: Progress, line: TaskID, name: str, what: str, done: int, total: int) -> None:
    progress.update(line, description=f"{name}: {what}", completed=done, total=total)


def _prepare(setup: Setup, name: str, options: Any) -> None:
    """Make checkpoint and builds, for this machine or for one with a GPU."""
    setup.builds(options.checkpoint)
    if made := EXPERIMENTS[name].builds:
        list(made(setup, options))


def _run(setup: Setup, results: Results, resume: bool) -> None:
    """Measure, keep and show."""
    assert results.path
    experiment, out = EXPERIMENTS[results.experiment], results.path.parent
    results.threads, results.device = setup.threads, setup.device.name
    results.summary = experiment.summary
    results.machine |= setup.device.described()
    if setup.device.dry:
        results.note(DRY_RUN)
    if resume:
        results.resume()
    else:
        results.path.with_suffix(".png").unlink(missing_ok=True)  # a former run's
    try:
        experiment.run(setup, results.settings, results)
        results.complete = True
    finally:
        if any(results.sections.values()):
            results.write()
    report = results.as_json()
    _draw(report, out)
    print(page.block(read(results.path)), json.dumps(report), sep="\n\n")


def _setup(arguments: argparse.Namespace) -> Setup:
    require_fields(arguments, threads=1, rounds=1)
    if arguments.dry_run and arguments.device != "cuda":
        raise UserError("--dry-run is of --device cuda", "on the CPU: --quick")
    quick = bool(arguments.quick or arguments.dry_run)
    device = Device(arguments.device, arguments.threads, quick, arguments.dry_run)
    work = arguments.work / "quick" if quick else arguments.work
    return Setup(
        work,
        device,
        quick,
        arguments.dtype,
        arguments.peers_python,
        arguments.kvpress_python,
        arguments.dynamo_python,
        arguments.openvino_python,
    )


def _results_of(setup: Setup) -> Path:
    """The directory of results; --quick has its own, since its numbers mean nothing."""
    is_page = setup.device.name == "cpu" and not setup.quick
    return RESULTS if is_page else setup.work / "results" / setup.device.name


def _names(arguments: argparse.Namespace) -> list[str]:
    """The named experiments, in order. Raises UserError."""
    device, asked = arguments.device, set(arguments.names) - {"tables"}
    runs = {name for name, one in EXPERIMENTS.items() if one.options(device, quick=False)}
    if "all" in asked:
        asked |= runs & set(PAGE if device == "cpu" else EXPERIMENTS)
    for name in asked - runs - {"all"}:
        raise UserError(f"{name} is not for --device {device}", "leave out --device")
    return [name for name in EXPERIMENTS if name in asked]


def _options(arguments: argparse.Namespace, setup: Setup, name: str) -> Any:
    """The experiment's options, with --rounds, --cache-budget and --set. Raises UserError."""
    options = EXPERIMENTS[name].options(setup.device.name, setup.quick)
    given: dict[str, Any] = {}
    for text in arguments.set:
        field, _, value = text.partition("=")
        try:
            given[field] = _frozen(json.loads(value))
        except ValueError:
            raise UserError(f"--set {text} is not NAME=JSON", "such as steps=2") from None
    if arguments.rounds is not None:
        given["rounds"] = arguments.rounds
    if arguments.cache_budget is not None and hasattr(options, "cache_bytes"):
        given["cache_bytes"] = arguments.cache_budget
    known = {field.name for field in dataclasses.fields(options)} - {"caches"}
    if unknown := given.keys() - known:
        raise UserError(
            f"--set: {name} has no option '{min(unknown)}'", f"it has {', '.join(sorted(known))}"
        )
    return dataclasses.replace(options, **given)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _command(arguments: argparse.Namespace, name: str) -> str:
    """The command line without paths of this machine."""
    parts = ["python -m tools.studies.speed", name]
    parts += ["--device cuda"] if arguments.device == "cuda" else []
    parts += ["--quick"] if arguments.quick else []
    parts += ["--dry-run"] if arguments.dry_run else []
    parts += [f"--rounds {arguments.rounds}"] if arguments.rounds else []
    parts += [f"--cache-budget {arguments.cache_budget}"] if arguments.cache_budget else []
    return " ".join([*parts, *(["--set", *arguments.set] if arguments.set else [])])


def _show(into: Path | None, out: Path) -> None:
    """Write the tables of all existing results into a page, or to standard output."""
    if into:
        print(*page.write(into, out))
        return
    for path in (out / f"{name}.json" for name in EXPERIMENTS):
        if path.is_file():
            report = read(path)
            _draw(report, out)
            print(f"## {path.stem}\n\n{page.block(report)}\n")


def _draw(report: Row, out: Path) -> None:
    try:
        from snapexport.measure.plots import draw
        from tools.studies.speed.plots import PICTURES
    except ModuleNotFoundError:
        ERR.print("no plots: they need snapexport[eval]", style="dim")
        return
    draw(report, out, kinds=("png",), known=PICTURES)


def _failed(where: str, error: UserError) -> int:
    print(f"error: {where}{error.message}\n\nhint: {error.hint}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
