"""From a request's tensors to what is asked: a prompt, how to sample, and what to answer with.

Knows arrays and names, not Triton's objects. Every error names the input that it is about.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.contract.errors import UserError
from snapexport.runtime.prompts import Prompt
from snapexport.runtime.requests import SamplingParams
from snapexport.serving.triton.interface import OUTPUTS, PARAMETERS, TIMEOUT

Values = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Question:
    """One request, read. Its values are valid; whether the prompt fits, the runtime says.

    source: the input that the prompt came from. timeout: seconds, 0 where there is none.
    """

    prompt: Prompt
    source: str
    params: SamplingParams
    stream: bool
    echo: bool
    count_input: bool
    count_output: bool
    timeout: float


def read(values: Values, parameters: Mapping[str, Any], timeout_us: int = 0) -> Question:
    """Read the inputs that came, and the request's parameters. Raises UserError."""
    unknown = sorted(set(parameters) - PARAMETERS)
    if unknown:
        raise UserError(
            f"'{unknown[0]}' is neither an input of the model nor a parameter that it knows",
            "see the model's inputs at /v2/models/NAME",
        )
    for penalty in ("frequency_penalty", "presence_penalty"):
        if _one(values, penalty, 0.0) != 0:
            raise UserError(f"{penalty} is not supported", "leave it out, or send 0")
    source, prompt = _prompt(values)
    return Question(
        prompt=prompt,
        source=source,
        params=_params(values),
        stream=_one(values, "stream", False),
        echo=_echo(values, source),
        count_input=_one(values, "return_num_input_tokens", False),
        count_output=_one(values, "return_num_output_tokens", False),
        timeout=(timeout_us or _timeout(parameters)) / 1e6,
    )


def with_named(question: Question, wanted: frozenset[str]) -> Question:
    """The same; an output that its client has named counts as asked for.

    wanted: as Triton tells it, which is all of them where the client has named none.
    """
    named = wanted if len(wanted) < len(OUTPUTS) else frozenset()
    params = question.params
    if "output_logprobs" in named and params.logprobs is None:
        params = replace(params, logprobs=0)
    return replace(
        question,
        params=params,
        count_input=question.count_input or "num_input_tokens" in named,
        count_output=question.count_output or "num_output_tokens" in named,
    )


def _params(values: Values) -> SamplingParams:
    default = SamplingParams()
    return SamplingParams(
        max_tokens=_one(values, "max_tokens", default.max_tokens),
        temperature=_real(values, "temperature", default.temperature),
        top_p=_real(values, "top_p", default.top_p),
        top_k=_one(values, "top_k", default.top_k),
        seed=_one(values, "seed", default.seed),
        stop=_stop(values),
        ignore_eos=_one(values, "ignore_eos", default.ignore_eos),
        logprobs=_one(values, "logprobs", default.logprobs),
    )


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
    words = values["stop_words"].reshape(-1).tolist() if "stop_words" in values else []
    if b"" in words:
        raise UserError("stop_words holds an empty text", "leave it out")
    return tuple(_text("stop_words", word) for word in words)


def _timeout(parameters: Mapping[str, Any]) -> int:
    given = parameters.get(TIMEOUT, 0)
    if type(given) is not int or given < 0:  # a bool is an int too
        raise UserError(f"timeout {given!r} is no number of microseconds", "send 0 or more")
    return given


def _one(values: Values, name: str, default: Any) -> Any:
    """The single value of an input, as Python has it."""
    if name not in values:
        return default
    if values[name].size != 1:
        raise UserError(f"{name} has {values[name].size} values", "send one")
    (value,) = values[name].reshape(-1).tolist()
    return value


def _real(values: Values, name: str, default: float) -> float:
    """The shortest decimal that its 32 bits stand for: 0.7 and not 0.699999988."""
    return default if name not in values else float(str(np.float32(_one(values, name, default))))


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name} is not UTF-8: {error.reason} at byte {error.start}", "send UTF-8"
        ) from None
