"""What each cache makes of the vault's prompts. Prints nothing."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.build_directory import Build
from snapexport.runtime.llm import LLM
from snapexport.runtime.memory import cache_bytes
from snapexport.runtime.requests import SamplingParams
from snapexport.vault import VaultPrompt

ANSWER_TOKENS = 12
PARAMS = SamplingParams(max_tokens=ANSWER_TOKENS, stop=("\n",))


@dataclass(frozen=True)
class Answer:
    """What one cache made of the prompt, and how many of the others it got right.

    kept: the voted positions of each layer, None where the cache is the full one.
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


def ask(
    build: Build, baseline: bool, prompts: list[VaultPrompt], tell: Callable[[str], None]
) -> Answer:
    """Let one cache answer the first prompt, told as it comes, and then count the others."""
    llm = LLM(build.directory, baseline=baseline)
    first, *others = prompts
    text, started = "", time.perf_counter()
    for delta in llm.stream(first.text, PARAMS):
        tell(delta.text)
        text += delta.text
    return Answer(
        cache=cache_name(build, baseline),
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
    """Whether every word of the entry was remembered."""
    return text.strip() == prompt.answer.strip()


def cache_name(build: Build, baseline: bool) -> str:
    """What the demo calls the cache."""
    return "full cache" if baseline else build.manifest.geometry.policy


def _bytes(build: Build, baseline: bool) -> int:
    """Of the only slot."""
    total = cache_bytes(build.manifest)
    return total.full if baseline else total.decode
