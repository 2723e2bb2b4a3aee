"""Requests that all differ, so that a crossed stream shows, each with its expected answer."""

from dataclasses import dataclass
from typing import Any

from snapexport import LLM, SamplingParams
from snapexport.vault import prompts


@dataclass(frozen=True)
class RequestCase:
    """Inputs of one request, and the same build's answer to it alone."""

    inputs: dict[str, Any]
    text: str
    token_ids: tuple[int, ...]
    reason: str


def make(llm: LLM, count: int, max_tokens: int = 60) -> list[RequestCase]:
    """Greedy and sampled requests; prompts of one chunk and of several."""
    return [_request_case(llm, number, max_tokens) for number in range(count)]


def _request_case(llm: LLM, number: int, max_tokens: int) -> RequestCase:
    text = prompts.make_prompt(number, 60 + 240 * (number % 5)).text
    inputs: dict[str, Any] = {"text_input": text, "max_tokens": max_tokens, "ignore_eos": True}
    if number % 3:
        inputs |= {"temperature": 0.8, "top_p": 0.95, "top_k": 200, "seed": number}
    sampling = {name: value for name, value in inputs.items() if name != "text_input"}
    (completion,) = llm.generate(text, SamplingParams(**sampling))
    return RequestCase(inputs, completion.text, completion.token_ids, completion.finish_reason)
