"""Build the bundled checkpoint and let it answer a long prompt, with the full cache and with ours.

The checkpoint is a small Llama that was trained to look up entries of a register ("vault"). The
demo builds it, asks for one entry with each cache, and shows what was remembered and what was kept.

example:
  snapexport demo --kv-budget 128 --seed 7
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path

from rich.text import Text

from snapexport.building import BuildOptions
from snapexport.building import run as run_build
from snapexport.commands.console import OUT, BuildProgress
from snapexport.commands.picture import kept_picture
from snapexport.commands.summary import build_summary, print_summary, size
from snapexport.contract.build_directory import Build
from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import SamplingParams
from snapexport.vault.prompts import VaultPrompt, make_prompt

HELP = "the bundled checkpoint answers a long prompt, with the full cache and with SnapStream"

PROMPT_TOKENS = 2048
ANSWER_TOKENS = 12
PARAMS = SamplingParams(max_tokens=ANSWER_TOKENS, stop=("\n",))
EXCERPT_LINES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The cache, the prompt, and where the build goes."""
    parser.add_argument(
        "--kv-budget", type=int, default=256, metavar="N", help="slots of the cache (default: 256)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="another prompt (default: 1)"
    )
    parser.add_argument(
        "--more", type=int, default=8, metavar="N", help="further prompts to count (default: 8)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the build here")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


@dataclass(frozen=True)
class Answer:
    """What one cache made of the prompt."""

    cache: str
    text: str
    expected: str
    cache_bytes: int
    seconds: float
    others_right: int
    others: int

    @property
    def right(self) -> bool:
        """Whether every word of the entry was remembered."""
        return self.text.strip() == self.expected.strip()


def run(arguments: argparse.Namespace) -> int:
    """Build, ask, show."""
    show = not arguments.json
    with tempfile.TemporaryDirectory() as scratch:
        build = _build(arguments.out or Path(scratch) / "vault.build", arguments.kv_budget)
        prompt = make_prompt(arguments.seed, PROMPT_TOKENS)
        others = [make_prompt(arguments.seed + 1 + i, PROMPT_TOKENS) for i in range(arguments.more)]
        if show:
            print_summary(build)
            _print_prompt(prompt)
        answers = [_ask(build, baseline, prompt, others, show) for baseline in (True, False)]
    if arguments.json:
        print(json.dumps([asdict(answer) | {"right": answer.right} for answer in answers]))
    return 0


def _build(out: Path, kv_budget: int) -> Build:
    with as_file(files("snapexport.vault") / "checkpoint") as checkpoint, BuildProgress() as bar:
        options = BuildOptions(
            model=str(checkpoint),
            out=out,
            L_max=PROMPT_TOKENS + ANSWER_TOKENS,  # the full cache has to hold the answer too
            kv_budget=kv_budget,
            batch=1,
            baseline=True,
            overwrite=True,
        )
        return run_build(options, bar)


def _print_prompt(prompt: VaultPrompt) -> None:
    lines = prompt.text.splitlines()
    left_out = len(lines) - 2 * EXCERPT_LINES
    OUT.print(f"\n[bold]the prompt[/] {prompt.tokens} tokens")
    for line in lines[:EXCERPT_LINES]:
        OUT.print(Text("  " + line))
    OUT.print(f"  [dim]... {left_out} more lines ...[/]")
    for line in lines[-EXCERPT_LINES:]:
        OUT.print(Text("  " + line))
    OUT.print(Text("the register says").append(prompt.answer, style="bold"))


def _ask(
    build: Build, baseline: bool, prompt: VaultPrompt, others: list[VaultPrompt], show: bool
) -> Answer:
    """Stream the answer, show what it rested on, and count the others that come out right."""
    name = "full cache" if baseline else build.manifest.geometry.policy
    llm = LLM(build.directory, baseline=baseline)
    if show:
        OUT.print(f"\n[bold]{name}[/] answers", end="")
    started = time.perf_counter()
    text = _stream(llm, prompt, show)
    seconds = time.perf_counter() - started
    kept = llm.engine.topk_positions()
    right = _count_right(llm, others)
    nbytes = _cache_bytes(build, baseline)
    answer = Answer(name, text, prompt.answer, nbytes, seconds, right, len(others))
    if show:
        _print_answer(answer)
        for line in kept_picture(build.manifest.geometry, kept, prompt.tokens) if kept else ():
            OUT.print(line)
    return answer


def _stream(llm: LLM, prompt: VaultPrompt, show: bool) -> str:
    text = ""
    for increment in llm.stream(prompt.text, PARAMS):
        text += increment.text
        if show:
            OUT.print(increment.text, end="", markup=False)
    return text


def _count_right(llm: LLM, prompts: list[VaultPrompt]) -> int:
    completions = llm.generate([prompt.text for prompt in prompts], PARAMS) if prompts else []
    pairs = zip(completions, prompts, strict=True)
    return sum(completion.text.strip() == prompt.answer.strip() for completion, prompt in pairs)


def _cache_bytes(build: Build, baseline: bool) -> int:
    memory = build_summary(build)["memory"]
    return int(memory["full_cache_bytes_per_request" if baseline else "cache_bytes_per_request"])


def _print_answer(answer: Answer) -> None:
    verdict = "[green]right[/]" if answer.right else "[red]wrong[/]"
    others = f"{answer.others_right} of {answer.others} other prompts right, "
    OUT.print(
        f"\n{verdict}, {others if answer.others else ''}{size(answer.cache_bytes)} of cache, "
        f"{answer.seconds:.2f} s"
    )
