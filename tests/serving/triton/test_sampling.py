"""Sampling inputs of a Triton request have the meaning of SamplingParams."""

import json
import re
from importlib.util import find_spec

import pytest

from snapexport import LLM, SamplingParams
from snapexport.vault.prompts import make_prompt
from tests.serving.triton.client import Client

PROMPT = make_prompt(5, 120).text


def test_seed_of_64_bits_gives_the_runtimes_tokens(client: Client, llm: LLM) -> None:
    seed = 2**64 - 1
    params = SamplingParams(max_tokens=20, temperature=0.7, top_p=0.9, seed=seed, ignore_eos=True)
    (expected,) = llm.generate(PROMPT, params)
    inputs = {"max_tokens": 20, "temperature": 0.7, "top_p": 0.9, "seed": seed, "ignore_eos": True}
    assert client.generate(text_input=PROMPT, **inputs).token_ids == expected.token_ids


def test_stop_words_end_the_text_before_them(client: Client, llm: LLM) -> None:
    (free,) = llm.generate(PROMPT, SamplingParams(max_tokens=40, ignore_eos=True))
    stop = free.text[20:26]
    expected = free.text[: free.text.index(stop)]
    inputs = {"max_tokens": 40, "ignore_eos": True, "stop_words": ["not in it", stop]}
    whole = client.generate(text_input=PROMPT, **inputs)
    assert (whole.text, whole.reason) == (expected, "stop")
    streamed = client.stream_all(text_input=PROMPT, **inputs)
    assert "".join(reply.text for reply in streamed) == expected


def test_stop_tokens_end_the_answer_after_them(client: Client, llm: LLM) -> None:
    (free,) = llm.generate(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True))
    stop = free.token_ids[8]
    expected = free.token_ids[: free.token_ids.index(stop) + 1]
    inputs = {"max_tokens": 20, "ignore_eos": True, "stop_token_ids": [stop]}
    ended = client.generate(text_input=PROMPT, **inputs)
    assert (ended.token_ids, ended.reason) == (expected, "stop")


def test_ignore_eos_goes_on_after_the_end_of_sequence(client: Client) -> None:
    inputs = {"text_input": PROMPT, "max_tokens": 40}
    ended = client.generate(**inputs)
    assert ended.reason == "stop" and ended.token_ids[-1] == 1
    longer = client.generate(**inputs, ignore_eos=True)
    assert longer.reason == "length" and len(longer.token_ids) == 40
    assert longer.token_ids[: len(ended.token_ids)] == ended.token_ids


@pytest.mark.parametrize("count", [0, 3, 20])
def test_triton_logprobs_equal_the_runtimes(client: Client, llm: LLM, count: int) -> None:
    inputs = {"max_tokens": 8, "temperature": 0.9, "seed": 3, "logprobs": count}
    (expected,) = llm.generate(PROMPT, SamplingParams(**inputs))
    replies = client.stream_all(text_input=PROMPT, **inputs)
    logprobs = [one for reply in replies for one in json.loads(reply.outputs["output_logprobs"][0])]
    assert logprobs == json.loads(
        client.generate(text_input=PROMPT, **inputs).outputs["output_logprobs"][0]
    )
    assert [one["id"] for one in logprobs] == list(expected.token_ids)
    for one, of_llm in zip(logprobs, expected.logprobs, strict=True):
        assert one["logprob"] == pytest.approx(of_llm.logprob, abs=1e-12)
        top = [(other["id"], other["logprob"]) for other in one["top"]]
        assert top == [pytest.approx(pair, abs=1e-12) for pair in of_llm.top]
        assert len(top) == count
    text = "".join(one["text"] for one in logprobs).removesuffix("</s>")
    assert text == expected.text


def test_penalties_give_the_runtimes_tokens(client: Client, llm: LLM) -> None:
    inputs = {"repetition_penalty": 1.3, "presence_penalty": 0.7, "min_tokens": 12, "min_p": 0.05}
    inputs |= {"max_tokens": 20, "temperature": 0.9, "seed": 4}
    (expected,) = llm.generate(PROMPT, SamplingParams(**inputs))  # type: ignore[arg-type]
    assert client.generate(text_input=PROMPT, **inputs).token_ids == expected.token_ids


@pytest.mark.skipif(find_spec("llguidance") is None, reason="llguidance is not installed")
def test_structured_outputs_hold_the_form(client: Client) -> None:
    form = json.dumps({"regex": "[a-z]{3}-[0-9]{4}"})
    done = client.generate(text_input=PROMPT, max_tokens=40, structured_outputs=form)
    assert re.fullmatch("[a-z]{3}-[0-9]{4}", done.text) and done.reason == "stop"
