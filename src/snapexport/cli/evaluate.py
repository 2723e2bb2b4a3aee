"""Measure what a cache costs in accuracy: long-context tasks, run through the build's own graphs.

Other policies of as many slots, and the full cache, are made from the build's trace (build it with
--baseline); a prompt is prefilled once for all of them. Tasks come from a seed: no data is needed.
Give --out for plots, and to go on after an interruption.

A policy may carry choices of its own: snapstream:L_obs=16,pool=max.

examples:
  snapexport eval qwen.build --tasks niah_single vt --samples 2
  snapexport eval qwen.build --lengths 8192 16384 --budgets 1024 2048 4096 --out qwen.eval
  snapexport eval qwen.build --policies full snapstream snapstream:vote=sum-squares,pool=max
"""

import argparse
import json
from pathlib import Path

from rich.markup import escape

from snapexport.cli import eval_view, flags
from snapexport.cli.console import ERR, AnswerProgress
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import needs_extra
from snapexport.eval.options import MODES, EvalOptions
from snapexport.eval.tasks import TASKS

HELP = "accuracy on long-context tasks: full cache, SnapStream and others"

CHOICES = {
    "tasks": f"of {', '.join(TASKS)} (default: the first eight)",
    "lengths": "tokens of a prompt (default: a quarter, a half and nearly all of L_max)",
    "depths": "where the needle stands, as shares of the context",
    "samples": "for each task, length and depth",
    "policies": "caches to compare",
    "budgets": "slots of each cache but the full one (default: the build's own)",
    "modes": f"of {', '.join(MODES)}: the question is part of the compressed prompt; it comes "
    "after it; it is asked again when the ring holds other text",
    "hit_samples": "prompts of each task whose generation is watched for the vote's hit rate",
    "seed": "other samples",
    "threads": "of ONNX Runtime (default: all cores)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The fields of EvalOptions, where the results go, and --json."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build made with --baseline")
    flags.add_fields(parser, EvalOptions, CHOICES)
    parser.add_argument("--out", type=Path, metavar="DIR", help="report, answers and plots")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Plan, ask, and show."""
    options = EvalOptions(**flags.values(arguments, CHOICES))
    with needs_extra("build"):
        from snapexport.eval import plan as planning
        from snapexport.eval import run as running
    if arguments.out:
        with needs_extra("eval"):
            from snapexport.eval import plots
    plan = planning.plan(Build.open(arguments.build), options)
    with AnswerProgress(plan.answers) as progress:
        report = running.run(plan, arguments.out, lambda _: progress.advance())
    if arguments.out:
        written = plots.draw(report, arguments.out)
        files = f"{arguments.out}: report.json, samples.jsonl, {', '.join(written)}"
        ERR.print(escape(files), style="dim", soft_wrap=True)
    if arguments.json:
        print(json.dumps(report))
    else:
        eval_view.print_report(report)
    return 0
