"""Measure a build: its speed and memory, beside the least that this machine could need.

Prefill by prompt length, decode steps by context and active batch slots, the share of compression
in prefill, and peak memory. The roofline follows from what must be read, written and multiplied,
and from rates probed in the same run. --baseline adds the full cache's graphs, in turn
in the same run.

guidellm and `vllm bench serve` put a server under load: `snapexport serve` has OpenAI's API.

examples:
  snapexport bench qwen.build
  snapexport bench qwen.build --contexts 4096 16384 --batches 1 4 --baseline
  snapexport bench qwen.build --backend openvino --precision bf16
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from snapexport.cli import flags
from snapexport.cli.console import ERR, OUT, print_estimate
from snapexport.cli.progress import DESCRIPTION, Shown, add_progress
from snapexport.contract.build_directory import Build
from snapexport.contract.memory import spelled
from snapexport.errors import UserError
from snapexport.measure.bench import probes, speed
from snapexport.measure.bench.plan import Plan, estimate
from snapexport.measure.bench.results import Results, Table, cores
from snapexport.measure.bench.turns import Row
from snapexport.measure.options import BenchOptions

HELP = "speed and memory, with their rooflines"
RESULTS = "results.json"

CHOICES = {
    "contexts": "tokens of the prompts (default: an eighth and a half of L_max)",
    "batches": "batch slots that decode at a time (default: one, and all of the build's)",
    "decode_steps": "decode steps that are timed in a row, in each round",
    "repeat": "rounds in which everything is measured",
    "baseline": "measure the full cache's graphs too; for builds made with --baseline",
    "backend": "what runs the graphs",
    "precision": "what OpenVINO calculates in (default: f32)",
    "threads": "CPU threads of the backend and the probes (default: all cores)",
    "prepack": "rearrange a copy of the weights for decode: for one slot or more than 32",
    "seed": "seed of the random prompts",
}


class BenchProgress(Shown):
    """A bar that counts measurements, with the time that is left."""

    def __init__(self) -> None:
        columns = DESCRIPTION, BarColumn(), MofNCompleteColumn()
        super().__init__(*columns, TimeElapsedColumn(), TimeRemainingColumn(), total=None)

    def update(self, what: str, done: int, total: int) -> None:
        """Show how many of a part's measurements are done."""
        self._bars.update(self._line, description=what, completed=done, total=total)
        self._print(lambda: f"{what}: {done} of {total}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the fields of BenchOptions, where the results go, and --json."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    flags.add_fields(parser, BenchOptions, CHOICES)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for results and plots (default: BUILD.bench)",
    )
    add_progress(parser)
    parser.add_argument("--json", action="store_true", help="print only the results, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure, show, keep. What was measured before Ctrl-C is shown and kept too."""
    options = BenchOptions(**flags.values(arguments, CHOICES))
    build = Build.open(arguments.build)
    build.require_run(command="bench")
    plan = Plan.of(build, options)
    threads = options.threads or cores()
    results = Results("speed", "snapexport bench", plan.options, threads)
    results.summary, results.about = speed.summary, plan.about()
    out = arguments.out or _beside(arguments.build)
    with _directory(out):
        if ERR.is_terminal:
            _print_expected(plan)
        try:
            with BenchProgress() as progress:
                results.progress = progress.update
                probed = probes.probes(threads, options.backend, options.precision)
                speed.run(plan, results, probed)
                results.complete = True
        except SystemExit:
            if any(results.sections.values()):
                _show(results, out, arguments.json)
            raise
        _show(results, out, arguments.json)
    return 0


def _print_expected(plan: Plan) -> None:
    expected = estimate(plan)
    caches = " and ".join(spec.name for spec in plan.specs)
    contexts = ", ".join(map(str, plan.contexts))
    what = f"{caches}, prompts of {contexts} tokens, {plan.options.repeat} rounds"
    print_estimate(what, expected.seconds, expected.nbytes)


def _beside(build: Path) -> Path:
    whole = build.absolute()
    return whole.with_name(f"{whole.name}.bench")


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
    if as_json:
        print(json.dumps(report))
    else:
        _print_report(report)


def _plots(results: Results, out: Path) -> list[str]:
    """Draw them where matplotlib is there; their names."""
    try:
        from snapexport.measure import plots
    except ModuleNotFoundError:
        ERR.print("no plots: they need snapexport[eval]", style="dim")
        return []
    return plots.draw(results.as_json(), out)


def _print_report(report: Row) -> None:
    """A table for each thing that was measured."""
    machine, settings = report["machine"], report["settings"]
    engine = settings.get("backend", "onnxruntime")
    version, precision = machine["versions"].get(engine, "?"), settings.get("precision")
    OUT.print(
        f"{machine['processor']}, {machine['cores']} cores, {spelled(machine['memory_bytes'])}, "
        f"{engine} {version}{f' in {precision}' if precision else ''}, "
        f"load before: {machine['load_average'][0]}"
    )
    if machine["load_average"][0] > machine["cores"] / 2:
        OUT.print(
            "other processes were busy before: trust ratios, and not too much", style="yellow"
        )
    if not report["complete"]:
        OUT.print("interrupted: this is what was measured until then", style="yellow")
    _print_rates(report["sections"].get("rates", []))
    report = report | {"sections": defaultdict(list, report["sections"])}
    for table in speed.tables(report):
        _print_table(table)


def _print_rates(rows: list[Row]) -> None:
    units = {"bandwidth": "GB/s", "matmul": "GFLOP/s"}
    rates = [
        f"{row[probe]['median'] / 1e9:.1f} {unit}"
        for row in rows
        for probe, unit in units.items()
        if probe in row
    ]
    if rates:
        OUT.print(f"probed for the roofline: {', '.join(rates)}\n")


def _print_table(table: Table) -> None:
    if not table.rows and not table.notes:
        return
    shown = RichTable(title=table.title, title_justify="left", title_style="bold", box=None)
    shown.pad_edge = False
    for column, head in enumerate(table.heads):
        justify = "left" if table.is_text(column) else "right"
        shown.add_column(head, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in table.rows:
        shown.add_row(*row)
    if table.rows:
        OUT.print(shown)
    for note in table.notes:
        OUT.print(note, style="dim")
    OUT.print()
