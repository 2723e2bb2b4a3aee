"""From an answer to the model's output tensors."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from snapexport.runtime.requests import TokenLogprobs
from snapexport.serving.triton.backend.job import Answer, Job

TextOf = Callable[[int], str]
"""A token's own text."""


def tensors(job: Job, answer: Answer, text_of: TextOf) -> dict[str, NDArray[Any]]:
    """The outputs that the client wants of this answer, each [1, n].

    Counts come where they were asked for; of a stream each one counts its own response's tokens.
    """
    question = job.question
    beginning = question.prompt if question.echo and answer.is_first else ""
    outputs = {
        "text_output": _strings(f"{beginning}{answer.text}"),
        "finish_reason": _strings(answer.finish_reason or ""),
        "output_ids": _integers(*answer.token_ids),
    }
    if question.count_input:
        outputs["num_input_tokens"] = _integers(len(job.request.prompt_token_ids))
    if question.count_output:
        outputs["num_output_tokens"] = _integers(len(answer.token_ids))
    if question.params.logprobs is not None:
        outputs["output_logprobs"] = _strings(_to_json(answer.logprobs, text_of))
    return {name: array for name, array in outputs.items() if name in job.wanted}


def texts_of(tokenizer: Tokenizer | None) -> TextOf:
    """How each token reads after another one: alone, some decoders take its leading space away."""

    def text_of(token: int) -> str:
        if tokenizer is None:
            return ""
        once = tokenizer.decode([token], skip_special_tokens=False)
        twice = tokenizer.decode([token, token], skip_special_tokens=False)
        return str(twice.removeprefix(once))

    return text_of


def _to_json(logprobs: tuple[TokenLogprobs, ...], text_of: TextOf) -> str:
    """A list with an object for each token: id, text, logprob, and the likeliest in `top`."""
    return json.dumps(
        [
            _described(one.token_id, one.logprob, text_of)
            | {"top": [_described(token, logprob, text_of) for token, logprob in one.top]}
            for one in logprobs
        ],
        ensure_ascii=False,
    )


def _described(token: int, logprob: float, text_of: TextOf) -> dict[str, Any]:
    return {"id": token, "text": text_of(token), "logprob": max(logprob, LEAST_LOGPROB)}


LEAST_LOGPROB = float(np.finfo(np.float32).min)
"""In place of minus infinity, which JSON has no word for."""


def _strings(text: str) -> NDArray[np.object_]:
    return np.array([[text.encode()]], dtype=np.object_)


def _integers(*values: int) -> NDArray[np.int32]:
    return np.array([values], dtype=np.int32)
