"""Answers through Dynamo's frontend equal those of one process, on the same build."""

import asyncio
import random
import re
from importlib.util import find_spec

import pytest
from openai import BadRequestError
from openai.types import Completion

from snapexport import LLM, SamplingParams
from snapexport.vault import make_prompt
from tests.patience import until
from tests.serving.dynamo.processes import NAME, Cluster

COUNT = 64
TOKENS = 12
LENGTHS = 60, 200, 700, 1500, 2040
"""Below the compressed cache, and up to the longest prompt."""


def prompts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [make_prompt(seed + i, rng.choice(LENGTHS)).text for i in range(count)]


def token_ids(llm: LLM, text: str) -> list[int]:
    """As Dynamo's frontend reads a completion's prompt: without what a tokenizer puts before it."""
    assert llm.tokenizer
    ids: list[int] = llm.tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def sampled(llm: LLM, prompt: str, **params: object) -> str:
    how = SamplingParams(**({"max_tokens": TOKENS} | params))  # type: ignore[arg-type]
    (answer,) = llm.generate(token_ids(llm, prompt), how)
    return answer.text


async def gathered(cluster: Cluster, texts: list[str]) -> list[Completion]:
    client = cluster.async_client
    return await asyncio.gather(
        *(
            client.completions.create(model=NAME, prompt=text, max_tokens=TOKENS, temperature=0)
            for text in texts
        )
    )


def test_concurrent_requests_of_mixed_lengths_equal_one_process(cluster: Cluster, llm: LLM) -> None:
    texts = prompts(COUNT)
    prompts_read = [token_ids(llm, text) for text in texts]
    expected = llm.generate(prompts_read, SamplingParams(max_tokens=TOKENS))
    found = asyncio.run(gathered(cluster, texts))
    assert [one.choices[0].text for one in found] == [one.text for one in expected]
    assert [one.choices[0].finish_reason for one in found] == [o.finish_reason for o in expected]
    counts = [(len(one.prompt_token_ids), len(one.token_ids)) for one in expected]
    usages = [one.usage for one in found]
    assert [(one.prompt_tokens, one.completion_tokens) for one in usages if one] == counts
    assert min(cluster.metric(f"decode-{i}", "rows_moved_total") for i in range(2)) >= COUNT // 4


def test_batch_slots_and_leases_are_free_when_nothing_runs(cluster: Cluster) -> None:
    for member in ("prefill-0", "decode-0", "decode-1"):
        until(lambda member=member: cluster.metric(member, "slots_used") == 0)
    assert cluster.metric("prefill-0", "leases") == 0
    assert cluster.metric("prefill-0", "leases_expired_total") == 0


def test_moved_bytes_are_the_compressed_rows(cluster: Cluster) -> None:
    for member in ("decode-0", "decode-1"):
        rows = cluster.metric(member, "rows_moved_total")
        nbytes = cluster.metric(member, "row_bytes_total")
        assert nbytes == rows * 131072  # 2 layers x (key, value) x 2 heads x 128 slots x 32 x fp32
        assert cluster.metric(member, "row_full_cache_bytes_total") > 3 * nbytes
        assert cluster.metric(member, "row_seconds_total") > 0


def test_stream_has_the_same_text_in_many_chunks(cluster: Cluster, llm: LLM) -> None:
    text = make_prompt(7, 900).text
    chunks = list(
        cluster.client.completions.create(
            model=NAME,
            prompt=text,
            max_tokens=100,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
    )
    parts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    assert "".join(parts) == sampled(llm, text, max_tokens=100, ignore_eos=True)
    assert sum(map(bool, parts)) > 10


def test_stop_string_ends_the_text_before_it(cluster: Cluster, llm: LLM) -> None:
    text = make_prompt(11, 900).text
    whole = sampled(llm, text)
    stop = whole.split()[2]
    answer = cluster.client.completions.create(
        model=NAME, prompt=text, max_tokens=TOKENS, temperature=0, stop=[stop]
    ).choices[0]
    assert answer.text == sampled(llm, text, stop=[stop]) == whole[: whole.index(stop)]
    assert answer.finish_reason == "stop"


def test_seed_gives_the_tokens_of_one_process(cluster: Cluster, llm: LLM) -> None:
    text = "The register"  # the model is sure of an answer, and not of what a register says
    answers = [
        cluster.client.completions.create(
            model=NAME, prompt=text, max_tokens=TOKENS, temperature=2.0, top_p=0.95, seed=seed
        )
        .choices[0]
        .text
        for seed in (1, 1, 2)
    ]
    expected = [sampled(llm, text, temperature=2.0, top_p=0.95, seed=seed) for seed in (1, 1, 2)]
    assert answers == expected and answers[0] != answers[2]


def test_logprobs_of_every_token_equal_one_process(cluster: Cluster, llm: LLM) -> None:
    text = make_prompt(17, 900).text
    answer = cluster.client.completions.create(
        model=NAME, prompt=text, max_tokens=TOKENS, temperature=0, logprobs=3
    )
    (expected,) = llm.generate(token_ids(llm, text), SamplingParams(max_tokens=TOKENS, logprobs=3))
    found = answer.choices[0].logprobs
    assert found and found.token_logprobs and found.top_logprobs
    wanted = [one.logprob for one in expected.logprobs]
    assert found.token_logprobs == pytest.approx(wanted, abs=1e-3)
    each = list(zip(found.top_logprobs, expected.logprobs, strict=True))
    assert expected.finish_reason == "stop"
    for entry, one in each[:-1]:  # the frontend gives the end token two texts
        top = sorted(entry.values(), reverse=True)[:3]
        assert top == pytest.approx([logprob for _, logprob in one.top], abs=1e-3)


def test_one_token_is_the_prefill_workers(cluster: Cluster, llm: LLM) -> None:
    text = make_prompt(19, 300).text
    answer = cluster.client.completions.create(model=NAME, prompt=text, max_tokens=1, temperature=0)
    (expected,) = llm.generate(token_ids(llm, text), SamplingParams(max_tokens=1))
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected.text, "length")


def test_bad_request_is_refused_with_its_reason(cluster: Cluster) -> None:
    with pytest.raises(BadRequestError, match="tokens"):
        cluster.client.completions.create(model=NAME, prompt="vault " * 3000, max_tokens=2)


def test_closed_stream_frees_its_batch_slot(cluster: Cluster) -> None:
    before = sum(cluster.metric(f"decode-{i}", "requests_cancelled_total") for i in range(2))
    stream = cluster.client.completions.create(
        model=NAME,
        prompt="a",
        max_tokens=2200,
        stream=True,
        temperature=1.5,
        extra_body={"ignore_eos": True},
    )
    for _ in range(5):
        next(stream)
    assert sum(cluster.metric(f"decode-{i}", "slots_used") for i in range(2)) == 1
    stream.close()
    until(lambda: sum(cluster.metric(f"decode-{i}", "slots_used") for i in range(2)) == 0)
    after = sum(cluster.metric(f"decode-{i}", "requests_cancelled_total") for i in range(2))
    assert after == before + 1


@pytest.mark.skipif(find_spec("llguidance") is None, reason="llguidance is not installed")
def test_guided_decoding_holds_the_form(cluster: Cluster) -> None:
    (text,) = prompts(1)
    done = cluster.client.completions.create(
        model=NAME,
        prompt=text,
        max_tokens=40,
        seed=1,
        extra_body={"guided_regex": "[a-z]{3}-[0-9]{4}"},
    )
    assert re.fullmatch("[a-z]{3}-[0-9]{4}", done.choices[0].text)
    assert done.choices[0].finish_reason == "stop"
    with pytest.raises(BadRequestError, match="unclosed group"):
        cluster.client.completions.create(
            model=NAME, prompt=text, extra_body={"guided_regex": "(a"}
        )
