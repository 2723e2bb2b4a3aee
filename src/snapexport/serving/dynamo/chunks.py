"""Writes outputs as the chunks that Dynamo's frontend reads."""

from collections.abc import Sequence
from typing import Any

from snapexport.runtime.requests.request import OutputDelta, TokenLogprobs
from snapexport.serving.openai.logprobs import LEAST
from snapexport.serving.token_text import TokenText

Chunk = dict[str, Any]


def chunk_of(delta: OutputDelta, prompt_tokens: int, count: int, text_of: TokenText) -> Chunk:
    """One output. count: tokens of the answer so far, this output's among them."""
    chunk: Chunk = {"token_ids": list(delta.token_ids), "index": 0}
    if delta.logprobs:
        chunk |= _logprobs(delta.logprobs, text_of)
    if delta.finish_reason:
        chunk |= _ending(delta.finish_reason, prompt_tokens, count)
    return chunk


def ended(token_ids: list[int], finish_reason: str, prompt_tokens: int) -> Chunk:
    """The only chunk of an answer."""
    ending = _ending(finish_reason, prompt_tokens, len(token_ids))
    return {"token_ids": token_ids, "index": 0, **ending}


def _ending(finish_reason: str, prompt_tokens: int, count: int) -> Chunk:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": count}
    usage["total_tokens"] = prompt_tokens + count
    return {"finish_reason": finish_reason, "completion_usage": usage}


def _logprobs(each: Sequence[TokenLogprobs], text_of: TokenText) -> Chunk:
    top = [
        [_entry(rank, *other, text_of) for rank, other in enumerate(token.top, 1)] for token in each
    ]
    return {
        "log_probs": [max(token.logprob, LEAST) for token in each],
        **({"top_logprobs": top} if any(top) else {}),
    }


def _entry(rank: int, token: int, logprob: float, text_of: TokenText) -> dict[str, Any]:
    return {
        "rank": rank,
        "token_id": token,
        "token": text_of(token),
        "logprob": max(logprob, LEAST),
        "bytes": list(text_of.data(token)),
    }
