"""Measure what a compressed cache costs in accuracy, on long-context tasks and on your documents.

With --documents every cache is forced along the continuations of their passages, and compared with
the full one: log likelihood, KL divergence, likeliest tokens. --instructions about their text are
answered greedily, and compared up to the first token that differs from the full cache's.

The other caches are made from the traces of a build made with --baseline; without them, only the
build's own cache is scored. With --out the report and plots are written, and an interrupted
evaluation goes on where it stopped.

A policy may change fields of its cache: snapstream:L_obs=16,pool=max.

examples:
  snapexport eval qwen.build --tasks niah_single vt --samples 2
  snapexport eval qwen.build --documents reports/ --budgets 512 1024
  snapexport eval qwen.build --documents reports/ \\
      --instructions "Summarize this text."
  snapexport eval qwen.build --lengths 8192 16384 --budgets 1024 2048 4096 \\
      --out qwen.eval
  snapexport eval qwen.build \\
      --policies full snapstream snapstream:vote=sum,pool=max
"""

import argparse
import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from snapexport.cli import flags
from snapexport.cli.console import ERR, OUT, duration, print_estimate
from snapexport.cli.progress import AnswerProgress, add_progress
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError, needs_extra
from snapexport.measure.eval.records import require_place
from snapexport.measure.eval.tasks import TASKS
from snapexport.measure.options import ABLE, DEFAULT_MINUTES, DEFAULT_TASKS, MODES, EvalOptions

HELP = "accuracy on long-context tasks: the full cache, SnapStream and other policies"

CHOICES = {
    "tasks": f"one or more of {', '.join(TASKS)} (default: {' '.join(DEFAULT_TASKS)}; "
    "with the bundled checkpoint vault; with --documents none)",
    "lengths": "tokens of a prompt (default: a little less than half of L_max, and more than the "
    "cache)",
    "depths": "where the needle is, as shares of the context",
    "samples": "samples for each task, length and depth",
    "policies": "caches to compare, each POLICY or POLICY:FIELD=VALUE,...",
    "budgets": "cache slots per KV head of each cache but the full one (default: the build's)",
    "modes": f"one or more of {', '.join(MODES)}: the question is in the compressed prompt, comes "
    "after it, or is repeated when the ring holds other text",
    "hit_samples": "prompts of each task on which the vote's hit rate is measured; 0: none",
    "documents": "text files, or folders of them",
    "haystack": "text around needles: Python's manual, or nine sentences that repeat (default: the "
    "documents, or the manual)",
    "passages": "parts of the documents to measure, at most",
    "continuation": "tokens after each prompt that are forced and measured; 0: none",
    "instructions": "texts such as 'Summarize this text.', each answered after every prompt of the "
    "documents (default: none)",
    "max_tokens": "tokens of an answer to an instruction, at most",
    "chat": "ask tasks and instructions in the chat template (default: if the build has one)",
    "seed": "the first sample's seed",
    "backend": "what runs the graphs",
    "device": "where OpenVINO runs them (default: CPU)",
    "precision": "what OpenVINO calculates in (default: f32)",
    "threads": "CPU threads (default: all cores)",
    "minutes": "time for tasks: samples that would end later are left out; 0: no limit (default: "
    f"{DEFAULT_MINUTES} if no flag says what to measure, else 0)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The fields of EvalOptions, where the results go, and --json."""
    parser.add_argument(
        "build",
        type=Path,
        metavar="BUILD",
        help="a build; comparisons need one made with --baseline",
    )
    flags.add_fields(parser, EvalOptions, CHOICES)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write report, answers and plots here"
    )
    add_progress(parser)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print the report."""
    build = Build.open(arguments.build)
    given = flags.values(arguments, CHOICES, build.manifest.geometry.L_max)
    options = EvalOptions(**given)
    build.require_run(command="eval")
    if arguments.out:
        require_place(arguments.out)
    with needs_extra("build"):
        from snapexport.measure.eval.grid import make_grid

        grid = make_grid(build, options)
        from snapexport.measure.eval.estimate import estimate
        from snapexport.measure.eval.run import Evaluation
    if arguments.out:
        with needs_extra("eval"):
            import_module("matplotlib")
    evaluation = Evaluation(grid, arguments.out)
    if ERR.is_terminal:
        what = f"{grid.records} answers and continuations of {len(grid.systems)} caches"
        expected = estimate(grid)
        if expected.seconds > options.seconds:
            what += f", of which {duration(options.seconds)} are taken (--minutes 0 for all)"
        print_estimate(what, expected.seconds, expected.nbytes)
    try:
        with AnswerProgress(grid.records) as progress:
            for _ in evaluation.run():
                progress.advance()
        _require_results(evaluation.report())
    finally:  # what was measured until an interrupt is shown as well
        if evaluation.records and _results(report := evaluation.report()):
            _show(report, arguments)
    return 0


def _results(report: dict[str, Any]) -> bool:
    return any(report[section] for section in ("results", "continuations", "answers"))


def _require_results(report: dict[str, Any]) -> None:
    """Raise UserError where the time was up before a sample was answered with every cache."""
    if not _results(report) and (left_out := report["left_out"])["samples"]:
        seconds = left_out["seconds"] / left_out["samples"]
        raise UserError(
            f"the time was up within the first sample, which takes about {duration(seconds)}",
            f"use --minutes {math.ceil(seconds / 30)}, smaller --lengths, or fewer --policies",
        )


def _show(report: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print the report, and draw a whole one of several caches beside the records."""
    if arguments.out:
        with needs_extra("eval"):
            from snapexport.measure import plots
        drawn = report["complete"] and report["compared"]
        written = plots.draw(report, arguments.out) if drawn else []
        files = f"{arguments.out}: {', '.join(('report.json', 'samples.jsonl', *written))}"
        ERR.print(files, style="dim", soft_wrap=True)
    if not report["complete"]:
        ERR.print(f"note: {_why_incomplete(report, bool(arguments.out))}", soft_wrap=True)
    if arguments.json:
        print(json.dumps(report))
    else:
        _print_report(report)


def _why_incomplete(report: dict[str, Any], goes_on: bool) -> str:
    left_out = report["left_out"]
    if not (count := left_out["samples"]):
        again = "; the same command goes on from here" if goes_on else ""
        return f"interrupted, so that this is a part of the evaluation{again}"
    more = f"{count} more {'samples' if count > 1 else 'sample'} would take about"
    again = ", and go on from here" if goes_on else ""
    return f"the time was up: {more} {duration(left_out['seconds'])} (--minutes 0{again})"


BAD, POOR = 0.5, 0.9


def _print_report(report: dict[str, Any]) -> None:
    """Print a table for each mode and length, caches down and tasks across, and the hit rates."""
    options = report["options"]
    for mode in options["modes"] if report["results"] else ():
        for length in options["lengths"]:
            rows = [r for r in report["results"] if (r["mode"], r["length"]) == (mode, length)]
            if rows:
                _print_scores(f"{length} tokens, {MODES[mode]}", rows)
    if report["results"]:
        OUT.print(
            "accuracy ± standard error; rest: share of answers whose tokens after the first are "
            "all the reference's",
            style="dim",
        )
    for section, show in (("continuations", _print_continuations), ("answers", _print_answers)):
        for length in options["lengths"]:
            if rows := [row for row in report[section] if row["length"] == length]:
                show(length, rows)
    for rate in report["hit_rate"]:
        _print_hit_rate(rate)
    asked = (options["backend"], options["device"], options["precision"])
    if not report["compared"]:
        OUT.print(
            "only the build's own cache: with --baseline it is compared with the full one and with "
            "other policies",
            style="dim",
        )
    OUT.print("run by " + " ".join(filter(None, asked)), style="dim")
    if options["hit_samples"] and report["results"] and not report["hit_rate"]:
        OUT.print(
            "no hit rate: no cache votes, or the model soft-caps its attention scores", style="dim"
        )


def _table(title: str, *numbers: str) -> Table:
    """A table of caches, with columns of numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("cache")
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


_TASKS_ABREAST = 4
"""More columns would cut the numbers where a terminal has 80."""


def _print_scores(title: str, rows: list[dict[str, Any]]) -> None:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    for start in range(0, len(tasks), _TASKS_ABREAST):
        part = tasks[start : start + _TASKS_ABREAST]
        is_last = part[-1] == tasks[-1]
        table = _table(title, "slots", *part, *(["mean", "rest"] if is_last else []))
        for cache in dict.fromkeys((row["system"], row["slots"]) for row in rows):
            own = [row for row in rows if (row["system"], row["slots"]) == cache]
            counted = [row for row in own if row["counts"]]
            scores = [_score(row) for row in own if row["task"] in part]
            ends: list[Any] = [_mean(counted), _rest(counted)] if is_last else []
            table.add_row(cache[0], str(cache[1]), *scores, *ends)
        OUT.print(table)
    if failed := dict.fromkeys(row["task"] for row in rows if not row["counts"]):
        names = ", ".join(failed)
        OUT.print(f"not counted, as the full cache scores below {ABLE}: {names}", style="dim")
    OUT.print()


_CONTINUATIONS = {
    "nll": "nats a token",
    "loss": "lost",
    "kl": "KL",
    "agreement": "same likeliest token",
}


def _print_continuations(length: int, rows: list[dict[str, Any]]) -> None:
    title = f"{length} tokens of text, then {rows[0]['tokens'] // rows[0]['passages']} forced"
    columns = dict(_CONTINUATIONS) if "kl" in rows[0] else {"nll": _CONTINUATIONS["nll"]}
    table = _table(title, "slots", "passages", *columns.values())
    for row in rows:
        numbers = [_with_error(row, name) for name in columns]
        table.add_row(row["system"], str(row["slots"]), str(row["passages"]), *numbers)
    OUT.print(table)
    OUT.print()


def _print_answers(length: int, rows: list[dict[str, Any]]) -> None:
    title = f"{length} tokens of text and an instruction"
    table = _table(title, "slots", "answers", "tokens", "equal tokens", "share", "whole")
    for row in rows:
        low, median, high = (f"{quartile:.0f}" for quartile in row["equal_quartiles"])
        equal = Text(median).append(f" {low} to {high}", style="dim")
        counts = str(row["slots"]), str(row["answers"]), f"{row['tokens']:.0f}"
        share = _with_error(row, "share")
        table.add_row(row["system"], *counts, equal, share, f"{row['whole']:.3f}")
    OUT.print(table)
    OUT.print(
        "equal tokens: median and quartiles before the first that differs from the full cache's",
        style="dim",
    )
    OUT.print()


def _with_error(row: dict[str, Any], name: str) -> Text:
    spread = row[f"{name}_stderr"]
    return Text(f"{row[name]:.3f}").append("" if spread is None else f" ±{spread:.3f}", style="dim")


def _score(row: dict[str, Any]) -> Text:
    spread = "" if row["stderr"] is None else f" ±{row['stderr']:.2f}"
    return _colour(row["score"]).append(spread, style="dim")


def _mean(rows: list[dict[str, Any]]) -> Text:
    if not rows:
        return Text("-")
    mean = _colour(sum(row["score"] for row in rows) / len(rows))
    mean.stylize("bold")
    return mean


def _rest(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "-"
    return f"{sum(row['after_first'] for row in rows) / len(rows):.3f}"


def _colour(score: float) -> Text:
    colour = "red" if score < BAD else "yellow" if score < POOR else "green"
    return Text().append(f"{score:.3f}", style=colour)


def _print_hit_rate(rate: dict[str, Any]) -> None:
    layers = ", ".join("-" if share is None else f"{share:.2f}" for share in rate["by_layer"])
    counted = f"(attention above {rate['theta']}, {rate['prompts']} prompts)"
    of = f" of {rate['system']} with {rate['slots']} cache slots, by layer: {layers} "
    OUT.print(Text.assemble(("hit rate", "bold"), of, (counted, "dim")))
