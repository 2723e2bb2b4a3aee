"""Measures what docs/performance.md tells: an experiment by its name, or all of them.

Each writes NAME.json and NAME.png to --out; `tables` prints their tables. Builds are kept below
--work, made where missing, and made again by other code; checkpoints and the peers' own files are
kept there by their names alone.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.progress import MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from snapexport.bench.options import require_at_least
from snapexport.cli.console import ERR
from snapexport.contract.errors import UserError

from . import context, equal_memory, host, naive, overhead, peers, peers1b, plots, scale1b, tables
from .report import Report
from .setup import Setup

EXPERIMENTS: dict[str, ModuleType] = {
    "context": context,
    "equal_memory": equal_memory,
    "overhead": overhead,
    "naive": naive,
    "peers": peers,
    "peers1b": peers1b,
    "scale1b": scale1b,
    "host": host,
}
RESULTS = Path("docs/results/performance")
WORK = Path("build/performance")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    listed = "\n".join(f"  {name:13} {module.HELP}" for name, module in EXPERIMENTS.items())
    made = argparse.ArgumentParser(
        prog="python -m tools.performance",
        description=__doc__,
        epilog=f"experiments:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("names", nargs="+", metavar="NAME", choices=[*EXPERIMENTS, "all", "tables"])
    made.add_argument("--out", type=Path, help=f"for results (default: {RESULTS})")
    made.add_argument("--work", type=Path, default=WORK, help="default: %(default)s")
    made.add_argument("--quick", action="store_true", help="tiny sizes, to see that all goes")
    made.add_argument("--rounds", type=int, help="other than the experiment's own")
    made.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    made.add_argument(
        "--peers-python", type=Path, help="interpreter of tools/performance/peers.txt"
    )
    made.add_argument("--kvpress-python", type=Path, help="of tools/performance/kvpress.txt")
    made.add_argument("--write", type=Path, help="tables: into this page, in place of its former")
    return made


def main(argv: list[str] | None = None) -> int:
    """Run what is asked for; 2 where it was asked wrongly, 130 where it was cut."""
    arguments = parser().parse_args(argv)
    try:
        status = measure(arguments)
        if "tables" in arguments.names and not status:
            show(arguments)
        return status
    except UserError as error:
        print(f"error: {error.message}\n\nhint: {error.hint}", file=sys.stderr)
        return 2


def show(arguments: argparse.Namespace) -> None:
    """Tables of all results that are there, to standard output or into a page."""
    out = _out(arguments)
    if arguments.write:
        print(*tables.write(arguments.write, out))
    else:
        found = [name for name in EXPERIMENTS if (out / f"{name}.json").is_file()]
        print(*(f"## {name}\n\n{tables.block(name, out)}\n" for name in found), sep="\n")


def measure(arguments: argparse.Namespace) -> int:
    """Each experiment, its results written however it ends."""
    require_at_least("threads", arguments.threads, 1)
    require_at_least("rounds", 1 if arguments.rounds is None else arguments.rounds, 1)
    setup = Setup(
        _work(arguments),
        arguments.threads,
        arguments.quick,
        arguments.peers_python,
        arguments.kvpress_python,
    )
    names = [name for name in EXPERIMENTS if {name, "all"} & set(arguments.names)]
    status = 0
    with Progress(
        TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn(), console=ERR
    ) as progress:
        for name in names:
            line = progress.add_task(name)
            tell = partial(_tell, progress, line, name)
            options = _options(arguments, name)
            report = Report(name, _command(arguments, name), options, setup.threads, tell)
            try:
                if not _ran(report, setup, _out(arguments)):
                    return 130
            except UserError as error:  # the others are measured all the same
                ERR.print(f"error: {name}: {error.message}\n\nhint: {error.hint}", markup=False)
                status = 2
    return status


def _ran(report: Report, setup: Setup, out: Path) -> bool:
    """Measure and write what was found; False where it was cut, and kept all the same."""
    name = report.experiment
    try:
        EXPERIMENTS[name].run(setup, report.options, report)
        report.complete = True
    except KeyboardInterrupt:
        return False
    finally:
        report.write(out)
        (out / f"{name}.png").unlink(missing_ok=True)  # a former run's
    plots.draw(name, out)
    return True


def _options(arguments: argparse.Namespace, name: str) -> Any:
    module = EXPERIMENTS[name]
    options = module.QUICK if arguments.quick else module.DEFAULT
    return replace(options, rounds=arguments.rounds) if arguments.rounds else options


def _command(arguments: argparse.Namespace, name: str) -> str:
    """Without what names a place on this machine."""
    rounds = ["--rounds", str(arguments.rounds)] if arguments.rounds else []
    quick = ["--quick"] if arguments.quick else []
    return " ".join(["python -m tools.performance", name, *quick, *rounds])


def _work(arguments: argparse.Namespace) -> Path:
    work: Path = arguments.work
    return work / "quick" if arguments.quick else work


def _out(arguments: argparse.Namespace) -> Path:
    """Quick results are none: they don't go where the others are."""
    default = _work(arguments) / "results" if arguments.quick else RESULTS
    return arguments.out or default


def _tell(progress: Progress, line: TaskID, name: str, section: str, done: int, total: int) -> None:
    progress.update(line, description=f"{name}: {section}", completed=done, total=total)


if __name__ == "__main__":
    sys.exit(main())
