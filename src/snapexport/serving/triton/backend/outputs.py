"""Turns an output into the model's output tensors."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.runtime.requests.request import OutputDelta, TokenLogprobs
from snapexport.serving.token_text import TokenText
from snapexport.serving.triton.backend.inputs import Inputs

LEAST_LOGPROB = float(np.finfo(np.float32).min)
"""In place of minus infinity, which JSON cannot express."""


def tensors(
    inputs: Inputs, prompt_tokens: int, output: OutputDelta, echo: str, text_of: TokenText
) -> dict[str, NDArray[Any]]:
    """The outputs that the client named, each [1, n].

    echo: text to put before the output's text. In a stream, num_output_tokens counts the tokens of
    one response.
    """
    outputs = {
        "text_output": _strings(echo + output.text),
        "finish_reason": _strings(output.finish_reason or ""),
        "output_ids": _integers(*output.token_ids),
    }
    if inputs.count_input:
        outputs["num_input_tokens"] = _integers(prompt_tokens)
    if inputs.count_output:
        outputs["num_output_tokens"] = _integers(len(output.token_ids))
    if inputs.params.logprobs is not None:
        outputs["output_logprobs"] = _strings(_to_json(output.logprobs, text_of))
    return {name: array for name, array in outputs.items() if name in inputs.outputs}


def _to_json(logprobs: tuple[TokenLogprobs, ...], text_of: TokenText) -> str:
    """JSON list of an object for each token: id, text, logprob, and `top`, its top tokens."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"id": token, "text": text_of(token), "logprob": max(logprob, LEAST_LOGPROB)}

    return json.dumps(
        [
            entry(token.token_id, token.logprob) | {"top": [entry(*other) for other in token.top]}
            for token in logprobs
        ],
        ensure_ascii=False,
    )


def _strings(text: str) -> NDArray[np.object_]:
    return np.array([[text.encode()]], dtype=np.object_)


def _integers(*values: int) -> NDArray[np.int32]:
    return np.array([values], dtype=np.int32)
