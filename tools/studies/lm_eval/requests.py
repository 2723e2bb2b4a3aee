"""Runs many requests on a build at once: completions as they end, and scores of continuations.

Prompts that are too long are cut from the left, as the harness does for transformers. Knows token
ids and an LLM, and not the harness.
"""

import logging
import math
from collections.abc import Iterator, Sequence

from snapexport.errors import UserError
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams

Tokens = list[int]
Scored = tuple[float, bool]
"""Sum of a continuation's natural log probabilities, and whether greedy decoding gives it."""

log = logging.getLogger(__name__)


def fit(prompts: Sequence[Tokens], new_tokens: Sequence[int], limits: Limits) -> list[Tokens]:
    """Cut each prompt from the left, its BOS included, to leave room for new tokens.

    One warning says how many were cut. Raises UserError where no prompt token would fit.
    """
    fitting = [
        prompt[-_room(count, limits) :] for prompt, count in zip(prompts, new_tokens, strict=True)
    ]
    lost = [len(whole) - len(cut) for whole, cut in zip(prompts, fitting, strict=True)]
    if any(lost):
        log.warning(
            "%d of %d prompts are longer than the build takes: their first tokens were cut, "
            "at most %d",
            sum(map(bool, lost)),
            len(lost),
            max(lost),
        )
    return fitting


def _room(new_tokens: int, limits: Limits) -> int:
    room = min(limits.longest_prompt, limits.positions - new_tokens)
    if room < 1:
        raise UserError(
            f"{new_tokens} tokens after the prompt do not fit into {limits.positions} positions",
            "lower max_gen_toks, or build again with a larger --L-max",
        )
    return room


def complete(
    llm: LLM, prompts: Sequence[Tokens], params: Sequence[SamplingParams]
) -> Iterator[tuple[int, str]]:
    """Index and text of each prompt as it ends: no prompt waits for another one's end."""
    pairs = enumerate(zip(prompts, params, strict=True))
    index_of = {llm.submit(prompt, one): index for index, (prompt, one) in pairs}
    texts = dict.fromkeys(index_of, "")
    try:
        while llm.busy:
            for delta in llm.step():
                texts[delta.request_id] += delta.text
                if delta.exception:
                    raise delta.exception
                if delta.finish_reason == "error":
                    raise _not_finite()
                if delta.finish_reason:
                    yield index_of[delta.request_id], texts.pop(delta.request_id)
    finally:  # nothing may still run after an error
        for request_id in index_of:
            llm.cancel(request_id)
        llm.step()


def score(llm: LLM, contexts: Sequence[Tokens], continuations: Sequence[Tokens]) -> list[Scored]:
    """Score each continuation, forced through decode after its context. An empty one is certain."""
    some = [index for index, tokens in enumerate(continuations) if tokens]
    results: list[Scored] = [(0.0, True)] * len(contexts)
    scores = llm.score([contexts[i] for i in some], [continuations[i] for i in some])
    for index, one in zip(some, scores, strict=True):
        if len(one.logprobs) < len(continuations[index]):
            raise _not_finite()
        results[index] = math.fsum(one.logprobs), one.is_greedy
    return results


def _not_finite() -> UserError:
    return UserError("the model's logits are not finite", "build it again with --dtype fp32")
