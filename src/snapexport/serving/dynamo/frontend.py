"""Reads requests of Dynamo's frontend, a prompt's tokens and how to continue them; writes chunks.

Fields that would change the output and are not supported are refused; others are the frontend's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.requests.request import OutputDelta, Request, SamplingParams, TokenLogprobs
from snapexport.runtime.requests.structured_outputs import StructuredOutputs
from snapexport.serving.model import LEAST, Model, TokenText

UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "logit_bias": ({},),
}
"""Sampling options without an equivalent, and the values that mean nothing."""

PROCESSORS = "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p"
"""Sampling options that have the runtime's names."""

_LEFT_TO_THE_RUNTIME = -1
"""top_k -1 is all tokens, in vLLM's manner."""


def read(model: Model, given: Mapping[str, Any]) -> Request:
    """Check one request. Raises UserError."""
    return model.read(list(given.get("token_ids") or ()), params_of(given, model.limits.positions))


def params_of(given: Mapping[str, Any], positions: int) -> SamplingParams:
    """Sampling parameters of a request, with the runtime's defaults. positions: the model's."""
    sampling, ends = given.get("sampling_options") or {}, given.get("stop_conditions") or {}
    _require_supported(sampling)
    length = len(given.get("token_ids") or ())
    most = ends.get("max_tokens")
    top_k = sampling.get("top_k") or 0
    processors = {name: sampling[name] for name in PROCESSORS if sampling.get(name) is not None}
    return SamplingParams(
        max_tokens=max(1, positions - length) if most is None else most,
        temperature=_or(sampling.get("temperature"), 1.0),
        top_p=_or(sampling.get("top_p"), 1.0),
        top_k=0 if top_k == _LEFT_TO_THE_RUNTIME else top_k,
        seed=sampling.get("seed"),
        stop=ends.get("stop") or (),
        stop_token_ids=_stop_token_ids(ends),
        ignore_eos=bool(ends.get("ignore_eos")),
        logprobs=(given.get("output_options") or {}).get("logprobs"),
        min_tokens=ends.get("min_tokens") or 0,
        structured_outputs=_form(sampling.get("guided_decoding")),
        **processors,
    )


def _form(guided: Mapping[str, Any] | None) -> StructuredOutputs | None:
    """The form of the answer. Whatever backend the client prefers, there is one."""
    given = {name: one for name, one in (guided or {}).items() if one is not None}
    given.pop("backend", None)
    return StructuredOutputs.of(given) if given else None


def _stop_token_ids(ends: Mapping[str, Any]) -> list[int]:
    """The frontend's own, such as a chat template's end token, come under `_hidden`."""
    hidden = [] if ends.get("ignore_eos") else ends.get("stop_token_ids_hidden") or []
    return list(dict.fromkeys([*(ends.get("stop_token_ids") or []), *hidden]))


def _require_supported(sampling: Mapping[str, Any]) -> None:
    for name, neutral in UNSUPPORTED.items():
        value = sampling.get(name)
        if value is not None and value not in neutral:
            raise UserError(f"{name} {value!r} is not supported", "leave it out")


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


Chunk = dict[str, Any]


def chunk_of(delta: OutputDelta, prompt_tokens: int, count: int, text_of: TokenText) -> Chunk:
    """One output. count: tokens of the answer so far, this output's among them."""
    chunk: Chunk = {"token_ids": list(delta.token_ids), "index": 0}
    if delta.logprobs:
        chunk |= _logprobs(delta.logprobs, text_of)
    if delta.finish_reason:
        chunk |= _ending(delta.finish_reason, prompt_tokens, count)
    return chunk


def only_chunk(token_ids: list[int], finish_reason: str, prompt_tokens: int) -> Chunk:
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
