"""Build the bundled checkpoint, and answer a long prompt with the full and the compressed cache.

The checkpoint is a small Llama that was trained to look up entries of a register ("vault"). The
demo builds it, asks for one entry with each cache, and shows the answers and the kept positions.

example:
  snapexport demo --kv-budget 128 --seed 7
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from snapexport.builder import BuildOptions
from snapexport.builder import run as run_build
from snapexport.cli import flags
from snapexport.cli.console import OUT
from snapexport.cli.kept_view import kept_picture, picture_width
from snapexport.cli.progress import BuildProgress
from snapexport.cli.summary import print_summary
from snapexport.contract.build_directory import Build
from snapexport.contract.memory import cache_bytes, spelled
from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from snapexport.vault import CHECKPOINT, VaultPrompt, make_prompt

HELP = "the bundled checkpoint answers a long prompt, with the full cache and with SnapStream"
PROMPT_TOKENS = 2048
ANSWER_TOKENS = 12
L_MAX = PROMPT_TOKENS + ANSWER_TOKENS
"""The full cache has to hold the answer too."""
PARAMS = SamplingParams(max_tokens=ANSWER_TOKENS, stop=("\n",))
EXCERPT_LINES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The cache, the prompt, and where the build goes."""
    parser.add_argument(
        "--kv-budget",
        type=flags.budget,
        default=256,
        metavar=flags.BUDGET,
        help="cache slots per KV head (default: 256)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="the prompt's seed (default: 1)"
    )
    parser.add_argument(
        "--more", type=int, default=8, metavar="N", help="further prompts to score (default: 8)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the build in this directory")
    parser.add_argument("--json", action="store_true", help="print one JSON list at the end")


def run(arguments: argparse.Namespace) -> int:
    """Build, answer with each cache, and print it as it comes."""
    prompts = [
        make_prompt(arguments.seed + i, PROMPT_TOKENS) for i in range(1 + max(0, arguments.more))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        kv_budget = flags.values(arguments, ["kv_budget"], L_MAX)["kv_budget"]
        build = _build(arguments.out, Path(scratch), kv_budget)
        if arguments.json:
            print(json.dumps([_answer(build, baseline, prompts)[0] for baseline in (True, False)]))
            return 0
        print_summary(build)
        _print_prompt(prompts[0])
        for baseline in (True, False):
            _print_answer(build, baseline, prompts)
    return 0


def _build(kept: Path | None, scratch: Path, kv_budget: int) -> Build:
    """Build the bundled checkpoint, in `kept` if it is given."""
    if kept is not None and os.path.lexists(kept):
        raise UserError(f"{kept} exists already", "choose another --out")
    options = BuildOptions(
        model=str(CHECKPOINT),
        out=kept or scratch / "vault.build",
        L_max=L_MAX,
        kv_budget=kv_budget,
        batch=1,
        baseline=True,
    )
    with BuildProgress() as progress:
        return run_build(options, progress)


def _answer(
    build: Build,
    baseline: bool,
    prompts: list[VaultPrompt],
    show: Callable[[str], None] = lambda delta: None,
) -> tuple[dict[str, Any], list[NDArray[np.int64]] | None]:
    """Answer the first prompt, passing each delta to `show`, and then score the others.

    Returns the report, and the voted positions of each layer, None for the full cache.
    """
    llm, total = LLM(build.directory, baseline=baseline), cache_bytes(build.manifest)
    first, *others = prompts
    text, started = "", time.perf_counter()
    for delta in llm.stream(first.text, PARAMS):
        show(delta.text)
        text += delta.text
    seconds = time.perf_counter() - started
    kept = llm.executor.topk_positions()  # of the latest prompt: before the others
    completions = llm.generate([prompt.text for prompt in others], PARAMS) if others else []
    right = [_right(one.text, prompt) for one, prompt in zip(completions, others, strict=True)]
    report = {
        "cache": _cache_name(build, baseline),
        "text": text,
        "expected": first.answer,
        "right": _right(text, first),
        "cache_bytes": total.full if baseline else total.decode,
        "seconds": seconds,
        "others_right": sum(right),
        "others": len(others),
    }
    return report, kept


def _right(text: str, prompt: VaultPrompt) -> bool:
    """Whether every word of the entry is right."""
    return text.strip() == prompt.answer.strip()


def _cache_name(build: Build, baseline: bool) -> str:
    """The demo's name of a cache."""
    return "full cache" if baseline else build.manifest.geometry.policy


def _print_prompt(prompt: VaultPrompt) -> None:
    """Print how the prompt begins and ends, and the expected answer."""
    lines = prompt.text.splitlines()
    left_out = len(lines) - 2 * EXCERPT_LINES
    OUT.print(Text.assemble(("\nthe prompt", "bold"), f" {prompt.tokens} tokens"))
    for line in lines[:EXCERPT_LINES]:
        OUT.print(Text("  " + line))
    OUT.print(f"  ... {left_out} more lines ...", style="dim")
    for line in lines[-EXCERPT_LINES:]:
        OUT.print(Text("  " + line))
    OUT.print(Text("the register says").append(prompt.answer, style="bold"))


def _print_answer(build: Build, baseline: bool, prompts: list[VaultPrompt]) -> None:
    """Print an answer as it comes, whether it was right, its cache, its time and what was kept."""
    OUT.print(Text.assemble(("\n" + _cache_name(build, baseline), "bold"), " answers"), end="")
    report, kept = _answer(build, baseline, prompts, lambda delta: OUT.print(delta, end=""))
    verdict = ("right", "green") if report["right"] else ("wrong", "red")
    others = f"{report['others_right']} of {report['others']} other prompts right, "
    rest = f"{spelled(report['cache_bytes'])} of cache, {report['seconds']:.2f} s"
    OUT.print(Text.assemble("\n", verdict, f", {others if report['others'] else ''}{rest}"))
    width, tokens = picture_width(OUT.width), prompts[0].tokens
    for line in kept_picture(build.manifest.geometry, kept, tokens, width) if kept else ():
        OUT.print(line)
