"""What a build says to many prompts at once: texts as they end, and scores of given ones.

Knows token ids and an LLM, and nothing of the harness.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from snapexport.contract.errors import UserError
from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import SamplingParams

Tokens = list[int]
Scored = tuple[float, bool]
"""Sum of a continuation's natural log probabilities, and whether greedy decoding gives it."""


def complete(
    llm: LLM, prompts: Sequence[Tokens], params: Sequence[SamplingParams]
) -> Iterator[tuple[int, str]]:
    """Index and text of each prompt as it ends: they share the slots, and none waits for others."""
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
    finally:
        _abandon(llm, index_of)


def _abandon(llm: LLM, request_ids: Iterable[int]) -> None:
    """After an error: nothing is left to run or to tell. What has ended is not touched."""
    for request_id in request_ids:
        llm.cancel(request_id)
    llm.step()


def score(llm: LLM, contexts: Sequence[Tokens], continuations: Sequence[Tokens]) -> list[Scored]:
    """Each continuation, forced through decode after its context. An empty one is certain."""
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
