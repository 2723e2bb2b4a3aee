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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from snapexport.build import BuildOptions
from snapexport.build import run as run_build
from snapexport.cli.console import OUT, BuildProgress
from snapexport.cli.kept_view import kept_picture, picture_width
from snapexport.cli.summary import print_summary
from snapexport.contract.build_directory import Build
from snapexport.contract.memory import cache_bytes
from snapexport.contract.sizes import spelled
from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from snapexport.vault import CHECKPOINT, VaultPrompt, make_prompt

HELP = "the bundled checkpoint answers a long prompt, with the full cache and with SnapStream"
PROMPT_TOKENS = 2048
ANSWER_TOKENS = 12
PARAMS = SamplingParams(max_tokens=ANSWER_TOKENS, stop=("\n",))
EXCERPT_LINES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The cache, the prompt, and where the build goes."""
    parser.add_argument(
        "--kv-budget",
        type=int,
        default=256,
        metavar="N",
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
        build = _build(arguments.out, Path(scratch), arguments.kv_budget)
        if arguments.json:
            answers = [
                _answer(build, baseline, prompts, _print_nothing) for baseline in (True, False)
            ]
            print(json.dumps([answer.report() for answer in answers]))
        else:
            _show(build, prompts)
    return 0


def _build(kept: Path | None, scratch: Path, kv_budget: int) -> Build:
    """Build the bundled checkpoint, in `kept` if it is given."""
    if kept is not None and os.path.lexists(kept):
        raise UserError(f"{kept} exists already", "choose another --out")
    options = BuildOptions(
        model=str(CHECKPOINT),
        out=kept or scratch / "vault.build",
        L_max=PROMPT_TOKENS + ANSWER_TOKENS,  # the full cache has to hold the answer too
        kv_budget=kv_budget,
        batch=1,
        baseline=True,
    )
    with BuildProgress() as progress:
        return run_build(options, progress)


def _show(build: Build, prompts: list[VaultPrompt]) -> None:
    print_summary(build)
    _print_prompt(prompts[0])
    for baseline in (True, False):
        _print_cache(_cache_name(build, baseline))
        answer = _answer(build, baseline, prompts, _print_text)
        _print_answer(answer)
        if answer.kept:
            _print_kept(build, answer.kept, prompts[0].tokens)


def _print_nothing(_: str) -> None:
    """Print nothing while an answer for --json comes."""


@dataclass(frozen=True)
class Answer:
    """One cache's answer to the first prompt, and how many other prompts it answered right.

    kept: the voted positions of each layer, None for the full cache.
    """

    cache: str
    text: str
    expected: str
    right: bool
    cache_bytes: int
    seconds: float
    others_right: int
    others: int
    kept: list[NDArray[np.int64]] | None

    def report(self) -> dict[str, object]:
        """For JSON."""
        return {name: value for name, value in vars(self).items() if name != "kept"}


def _answer(
    build: Build, baseline: bool, prompts: list[VaultPrompt], show: Callable[[str], None]
) -> Answer:
    """Answer the first prompt, passing each delta to `show`, and then score the others."""
    llm = LLM(build.directory, baseline=baseline)
    first, *others = prompts
    text, started = "", time.perf_counter()
    for delta in llm.stream(first.text, PARAMS):
        show(delta.text)
        text += delta.text
    return Answer(
        cache=_cache_name(build, baseline),
        text=text,
        expected=first.answer,
        right=_right(text, first),
        cache_bytes=_bytes(build, baseline),
        seconds=time.perf_counter() - started,
        kept=llm.executor.topk_positions(),  # of the latest prompt: before the others
        others_right=_count_right(llm, others),
        others=len(others),
    )


def _count_right(llm: LLM, prompts: list[VaultPrompt]) -> int:
    completions = llm.generate([prompt.text for prompt in prompts], PARAMS) if prompts else []
    return sum(_right(one.text, prompt) for one, prompt in zip(completions, prompts, strict=True))


def _right(text: str, prompt: VaultPrompt) -> bool:
    """Whether every word of the entry is right."""
    return text.strip() == prompt.answer.strip()


def _cache_name(build: Build, baseline: bool) -> str:
    """The demo's name of a cache."""
    return "full cache" if baseline else build.manifest.geometry.policy


def _bytes(build: Build, baseline: bool) -> int:
    """Cache bytes of the only batch slot."""
    total = cache_bytes(build.manifest)
    return total.full if baseline else total.decode


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


def _print_cache(name: str) -> None:
    """Print the name of the cache whose answer comes next, on the same line."""
    OUT.print(Text.assemble(("\n" + name, "bold"), " answers"), end="")


def _print_text(text: str) -> None:
    """Print a delta of the answer."""
    OUT.print(text, end="")


def _print_answer(answer: Answer) -> None:
    """Print whether it was right, its cache and its time."""
    verdict = ("right", "green") if answer.right else ("wrong", "red")
    others = f"{answer.others_right} of {answer.others} other prompts right, "
    rest = f"{spelled(answer.cache_bytes)} of cache, {answer.seconds:.2f} s"
    OUT.print(Text.assemble("\n", verdict, f", {others if answer.others else ''}{rest}"))


def _print_kept(build: Build, kept: list[NDArray[np.int64]], prompt_tokens: int) -> None:
    """Print the picture of the kept positions."""
    for line in kept_picture(
        build.manifest.geometry, kept, prompt_tokens, picture_width(OUT.width)
    ):
        OUT.print(line)
