"""Compare transformers, the full-cache graphs and the compressed graphs, through Polygraphy.

Sequences of random tokens (or your prompt) go through all of them; transformers' own greedy
continuation is forced on each. Where the compressed cache dropped nothing, outputs must be equal:
if they are not, the exit status is 1. Beyond, the distance is what the compression costs.

examples:
  snapexport diff llama.build
  snapexport diff llama.build --prompt-file report.txt --steps 64 --json
"""

import argparse
import json
import random
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from snapexport.commands import prompt
from snapexport.commands.console import ERR, OUT
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError, needs_extra
from snapexport.runtime.engine import Limits
from snapexport.runtime.prompts import load_tokenizer, read

if TYPE_CHECKING:
    from snapexport.accuracy.difference import Difference

HELP = "accuracy against transformers, by Polygraphy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The build, the sequences, and where the plain commands go."""
    parser.add_argument("build", type=Path, metavar="BUILD", help="a build directory")
    prompt.add_arguments(parser, required=False)
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        metavar="N",
        help="lengths of the random prompts (default: one that sinks and ring hold, the longest)",
    )
    parser.add_argument(
        "--steps", type=int, default=16, metavar="N", help="decode steps (default: 16)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random tokens")
    parser.add_argument(
        "--model", metavar="MODEL", help="reference checkpoint (default: the build's own weights)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="plain polygraphy commands (default: BUILD.diff)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, and write the commands that repeat it."""
    build = Build.open(arguments.build)
    prompts = _prompts(build, arguments)
    with needs_extra("build"):
        from snapexport.accuracy.report import compare_build
    out = arguments.out or build.directory.with_name(build.directory.name + ".diff")
    with ERR.status("comparing") if ERR.is_terminal else nullcontext():
        found, commands = compare_build(build, arguments.model, prompts, arguments.steps, out)
    if arguments.json:
        print(json.dumps({"differences": [asdict(d) for d in found], "commands": str(commands)}))
    else:
        _print_table(build, found)
        OUT.print(f"repeat it without snapexport: [bold]{commands}[/]")
    return int(any(difference.broken for difference in found))


def _prompts(build: Build, arguments: argparse.Namespace) -> list[list[int]]:
    """The prompt that was given, or random tokens from the seed."""
    longest = build.manifest.geometry.L_max - arguments.steps
    if arguments.steps < 1 or longest < 1:
        raise UserError(
            f"--steps {arguments.steps} is not between 1 and L_max - 1",
            f"the build's L_max is {build.manifest.geometry.L_max}: leave room for a prompt",
        )
    text = prompt.read(arguments)
    if text is not None:
        limits = Limits.of(build.manifest, full_cache=True)
        (request,) = read(text, None, load_tokenizer(build.directory), limits)
        prompts = [list(request.prompt_token_ids)]
    else:
        chance = random.Random(arguments.seed)
        vocabulary = range(build.manifest.model.vocab_size)
        lengths = arguments.lengths or _default_lengths(build, longest, arguments.steps)
        prompts = [chance.choices(vocabulary, k=length) for length in lengths]
    for tokens in prompts:
        if not 1 <= len(tokens) <= longest:
            raise UserError(
                f"{len(tokens)} prompt tokens and {arguments.steps} steps don't fit into L_max",
                f"take prompts of 1 to {longest} tokens, or fewer --steps",
            )
    return prompts


def _default_lengths(build: Build, longest: int, steps: int) -> list[int]:
    """One prompt that sinks and ring hold with its continuation, and the longest."""
    window = min(layer.L_sink + layer.L_recent for layer in build.manifest.geometry.layers)
    return sorted({max(1, min(window - steps, longest)), longest})


def _print_table(build: Build, found: "list[Difference]") -> None:
    table = Table("prompt", "output", "compared", "max error", "top-1", "KL", "", box=None)
    for column in table.columns:
        column.no_wrap = True
    for one in found:
        distance = one.distance
        table.add_row(
            str(one.prompt_length),
            one.output.removesuffix(".logits"),
            f"{one.runner} to {one.reference}",
            f"{distance.max_abs_error:.2g}",
            f"{distance.top1_agreement:.3f}",
            f"{distance.kl_divergence:.2g}",
            _verdict(one),
        )
    OUT.print(table)
    if not build.has_baseline and build.manifest.geometry.compresses:
        OUT.print("the build has no full-cache graphs to compare: build it with --baseline")


def _verdict(one: "Difference") -> str:
    if not one.lossless:
        return "[yellow]compressed[/]"
    return "[red]DIFFERS[/]" if one.broken else "[green]equal[/]"
