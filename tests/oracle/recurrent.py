"""The expected answer of a build with recurrent states: one forward of transformers' model.

It takes the prompt and what follows at once, without a cache: transformers' own caches take other
positions for Bamba, and another step for Nemotron-H, than its forward does. Rows after the prompt
see what the compressed cache holds then. Knows no graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from snapexport.contract.geometry import CacheGeometry
from snapexport.runtime.engine.open_executor import open_executor

from . import cases, masked
from .cases import LOGITS, Case
from .masked import MASKED, Memory, Scoring, causal

STEPS = 12


@dataclass
class Rows:
    """What the rows of one forward see, in the prompt and after it."""

    memory: Memory
    voted: set[int] = field(default_factory=set)

    def visible(self, layer: int, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        """As `Memory.visible`, for all rows at once."""
        length, total = self.memory.prompt_length, key.shape[1]
        whole = self.memory.visible(layer, query[:, :length], key[:, :length], scoring)
        shown = causal(total, total).expand(key.shape[0], -1, -1).clone()
        shown[:, :length, :length] = whole
        if self.memory.geometry.policy != "full":
            for row in range(length, total):
                shown[:, row, : row + 1] = self.memory.visible_in_decode(layer, row)
        return shown


@dataclass(frozen=True)
class Answer:
    """logits [1 + N, V]: after a prompt and after each of N tokens. kept: by cache [Hkv,K]."""

    logits: NDArray[np.float32]
    kept: Sequence[NDArray[np.int64]] = ()


@torch.no_grad()
def answer(
    name: str, prompt: Sequence[int], more: Sequence[int], geometry: CacheGeometry
) -> Answer:
    """The answer of a named checkpoint to a prompt that tokens follow."""
    memory, model = Memory(geometry, len(prompt)), masked.load(cases.checkpoint(name), MASKED)
    token = masked._memory.set(Rows(memory))
    try:
        out = model(torch.tensor([[*prompt, *more]]), use_cache=False)
    finally:
        masked._memory.reset(token)
    logits = out.logits[0, len(prompt) - 1 :].numpy()
    return Answer(logits, memory.votes()[0] if geometry.compresses else ())


def require_agreement(case: Case, lengths: Sequence[int]) -> float:
    """Prompts in all batch slots, then tokens of all at once. Returns the largest difference."""
    build, errors = cases.build_of(case), []
    executor = open_executor(build, threads=1)
    prompts = [cases.prompt(length, 7) for length in lengths]
    more = [cases.prompt(STEPS, 1000 + slot) for slot in range(len(lengths))]
    wants = []
    for slot, (prompt, following) in enumerate(zip(prompts, more, strict=True)):
        want = answer(case.checkpoint, prompt, following, build.manifest.geometry)
        errors.append(np.abs(executor.prefill_prompt(slot, prompt).logits - want.logits[0]).max())
        for kept, expected in zip(executor.topk_positions() or (), want.kept, strict=False):
            assert np.array_equal(kept, expected), f"{case} L={len(prompt)}"
        wants.append(want)
    length = np.array(lengths)
    for step in range(STEPS):
        ids = np.array([following[step] for following in more])
        predictions = executor.decode(ids, length + step, length)
        for slot, want in enumerate(wants):
            got, expected = predictions[slot].logits, want.logits[1 + step]
            errors.append(np.abs(got - expected).max())
            assert got.argmax() == expected.argmax()
    executor.close()
    assert max(errors) <= LOGITS, case
    return float(max(errors))
