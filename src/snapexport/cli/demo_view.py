"""What `demo` prints while it goes on."""

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from snapexport.cli.console import OUT
from snapexport.cli.demo_ask import Answer
from snapexport.cli.picture import kept_picture
from snapexport.contract.build_directory import Build
from snapexport.contract.bytes import spelled
from snapexport.vault import VaultPrompt

EXCERPT_LINES = 5


def print_prompt(prompt: VaultPrompt) -> None:
    """How the prompt begins and ends, and what the answer has to be."""
    lines = prompt.text.splitlines()
    left_out = len(lines) - 2 * EXCERPT_LINES
    OUT.print(f"\n[bold]the prompt[/] {prompt.tokens} tokens")
    for line in lines[:EXCERPT_LINES]:
        OUT.print(Text("  " + line))
    OUT.print(f"  [dim]... {left_out} more lines ...[/]")
    for line in lines[-EXCERPT_LINES:]:
        OUT.print(Text("  " + line))
    OUT.print(Text("the register says").append(prompt.answer, style="bold"))


def print_cache(name: str) -> None:
    """Whose answer comes next, on the same line."""
    OUT.print(f"\n[bold]{name}[/] answers", end="")


def print_text(text: str) -> None:
    """A piece of the answer."""
    OUT.print(text, end="", markup=False)


def print_answer(answer: Answer) -> None:
    """Whether it was right, and what it took."""
    verdict = "[green]right[/]" if answer.right else "[red]wrong[/]"
    others = f"{answer.others_right} of {answer.others} other prompts right, "
    OUT.print(
        f"\n{verdict}, {others if answer.others else ''}{spelled(answer.cache_bytes)} of cache, "
        f"{answer.seconds:.2f} s"
    )


def print_kept(build: Build, kept: list[NDArray[np.int64]], prompt_tokens: int) -> None:
    """The picture of what the answer rested on."""
    for line in kept_picture(build.manifest.geometry, kept, prompt_tokens):
        OUT.print(line)
