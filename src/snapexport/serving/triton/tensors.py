"""Reads a request's tensors: prompt, sampling, which outputs to send; makes an output's tensors.

Knows arrays and names, not Triton's objects. Every error names its input.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.runtime.requests.prompts import Prompt
from snapexport.runtime.requests.request import OutputDelta, SamplingParams, TokenLogprobs
from snapexport.runtime.requests.structured_outputs import StructuredOutputs
from snapexport.serving.model import TokenText
from snapexport.serving.triton.interface import HEALTH, OUTPUT_NAMES, PARAMETERS, TIMEOUT

Values = Mapping[str, NDArray[Any]]

WHOLE = "max_tokens", "top_k", "seed", "ignore_eos", "min_tokens"
PENALTIES = "frequency_penalty", "presence_penalty", "repetition_penalty"
REAL = "temperature", "top_p", "min_p", *PENALTIES
"""Inputs of one value that have the names of SamplingParams."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """A request's values, each checked by itself; the runtime checks whether the prompt fits.

    source: the name of the prompt's input. timeout: in seconds; 0: none. outputs: names of the
    outputs to send. is_probe: only whether the model lives is asked.
    """

    prompt: Prompt
    source: str
    params: SamplingParams
    stream: bool
    echo: bool
    count_input: bool
    count_output: bool
    timeout: float
    outputs: frozenset[str] = OUTPUT_NAMES
    is_probe: bool = False


def read(
    values: Values,
    parameters: Mapping[str, Any],
    timeout_us: int = 0,
    outputs: frozenset[str] = OUTPUT_NAMES,
) -> Inputs:
    """Read the request's inputs and parameters. Raises UserError.

    outputs: names of the outputs to send. If the client names none, Triton names all; then optional
    outputs are sent only where an input wants them.
    """
    unknown = sorted(set(parameters) - PARAMETERS)
    if unknown:
        raise UserError(
            f"'{unknown[0]}' is neither an input of the model nor a parameter that it knows",
            "see the model's inputs at /v2/models/NAME",
        )
    source, prompt = _prompt(values)
    named = outputs if outputs < OUTPUT_NAMES else frozenset()
    return Inputs(
        prompt=prompt,
        source=source,
        params=_params(values, logprobs=0 if "output_logprobs" in named else None),
        stream=_one(values, "stream", False),
        echo=_echo(values, source),
        count_input="num_input_tokens" in named or _one(values, "return_num_input_tokens", False),
        count_output="num_output_tokens" in named
        or _one(values, "return_num_output_tokens", False),
        timeout=(timeout_us or _timeout(parameters)) / 1e6,
        outputs=outputs,
        is_probe=parameters.get(HEALTH) is True,
    )


def _params(values: Values, logprobs: int | None) -> SamplingParams:
    """logprobs: the number of top tokens where the request gives none."""
    given = {name: _one(values, name) for name in WHOLE}
    given |= {name: _real(values, name) for name in REAL}
    return SamplingParams(
        stop=_stop(values),
        stop_token_ids=_list(values, "stop_token_ids"),
        logprobs=_one(values, "logprobs", logprobs),
        structured_outputs=_form(values),
        **{name: value for name, value in given.items() if value is not None},
    )


def _form(values: Values) -> StructuredOutputs | None:
    if "structured_outputs" not in values:
        return None
    text = _text("structured_outputs", _one(values, "structured_outputs"))
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"structured_outputs is not JSON: {error}", "send an object") from None
    return StructuredOutputs.of(given)


def _prompt(values: Values) -> tuple[str, Prompt]:
    given = [name for name in ("text_input", "input_ids") if name in values]
    if len(given) != 1:
        which = "both text_input and input_ids" if given else "neither text_input nor input_ids"
        raise UserError(f"{which} came with the request", "send exactly one of them")
    if given == ["text_input"]:
        return "text_input", _text("text_input", _one(values, "text_input", b""))
    return "input_ids", values["input_ids"].reshape(-1).tolist()


def _echo(values: Values, source: str) -> bool:
    echo = not _one(values, "exclude_input_in_output", True)
    if echo and source != "text_input":
        raise UserError(
            "exclude_input_in_output false needs a prompt as text", "send text_input, or true"
        )
    return echo


def _stop(values: Values) -> tuple[str, ...]:
    words = _list(values, "stop_words")
    if b"" in words:
        raise UserError("stop_words holds an empty text", "leave it out")
    return tuple(_text("stop_words", word) for word in words)


def _list(values: Values, name: str) -> list[Any]:
    """All values of an input; none where the request has no such input."""
    given: list[Any] = values[name].reshape(-1).tolist() if name in values else []
    return given


def _timeout(parameters: Mapping[str, Any]) -> int:
    given = parameters.get(TIMEOUT, 0)
    if type(given) is not int or given < 0:  # a bool is an int too
        raise UserError(f"timeout {given!r} is not a number of microseconds", "send 0 or more")
    return given


def _one(values: Values, name: str, default: Any = None) -> Any:
    """The single value of an input, as a Python object."""
    if name not in values:
        return default
    if values[name].size != 1:
        raise UserError(f"{name} has {values[name].size} values", "send one")
    (value,) = values[name].reshape(-1).tolist()
    return value


def _real(values: Values, name: str) -> float | None:
    """The shortest decimal of a float32: 0.7, not 0.699999988."""
    return float(str(np.float32(_one(values, name)))) if name in values else None


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name} is not UTF-8: {error.reason} at byte {error.start}", "send UTF-8"
        ) from None


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
