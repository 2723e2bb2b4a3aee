"""Workers that are killed, and workers of another build: nothing hangs, and nothing is crossed."""

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dynamo.health_check import HEALTH_CHECK_KEY
from openai import APIStatusError, AsyncOpenAI

from snapexport import LLM, SamplingParams
from snapexport.contract.manifest import Manifest
from tests.patience import until
from tests.serving.dynamo.processes import NAME, Cluster, ids_of
from tests.serving.process import SECONDS

LEASE = 3
TOKENS = 40
"""No request may take longer, whatever happened to its worker."""
GREEDY = {"stop_conditions": {"max_tokens": TOKENS}, "sampling_options": {"temperature": 0}}


def expected_of(llm: LLM, prompts: list[list[int]]) -> list[str]:
    how = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    return [one.text for one in llm.generate(prompts, how)]


def moved_texts(llm: LLM, prompt: list[int]) -> set[str]:
    """All texts of a request that moved once: its tokens so far become part of the prompt.

    The longer prompt is compressed anew, so that later tokens may differ.
    """
    assert llm.tokenizer
    (whole,) = llm.generate([prompt], SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    first = [list(whole.token_ids[:count]) for count in range(1, TOKENS)]
    how = [SamplingParams(max_tokens=TOKENS - len(one), ignore_eos=True) for one in first]
    rest = llm.generate([prompt + one for one in first], how)
    return {
        llm.tokenizer.decode([*one, *more.token_ids]) for one, more in zip(first, rest, strict=True)
    }


async def ask(client: AsyncOpenAI, prompt: list[int]) -> str | APIStatusError:
    try:
        answer = await client.completions.create(
            model=NAME,
            prompt=prompt,
            max_tokens=TOKENS,
            temperature=0,
            timeout=SECONDS,
            extra_body={"ignore_eos": True},
        )
    except APIStatusError as error:
        return error
    return str(answer.choices[0].text)


@pytest.mark.parametrize("migrations", [0, 3])
def test_killed_decode_worker_ends_or_moves_its_requests(
    alone: Cluster, build: Path, llm: LLM, migrations: int
) -> None:
    prompts = [ids_of(llm, seed) for seed in range(24)]
    expected = expected_of(llm, prompts)
    alone.serve(build, prefill=1, decode=2, migrations=migrations)

    async def load() -> list[str | APIStatusError]:
        client = alone.async_client
        running = asyncio.gather(*(ask(client, prompt) for prompt in prompts))
        await asyncio.to_thread(until, lambda: alone.metric("decode-0", "slots_used") >= 1)
        await asyncio.to_thread(alone.kill, "decode-0")
        return await running

    began = time.monotonic()
    found = asyncio.run(load())
    assert time.monotonic() - began < SECONDS
    failed = [one for one in found if not isinstance(one, str)]
    assert all(one.status_code >= 500 and one.message for one in failed)
    assert len(failed) <= llm.max_num_seqs + 4  # running there, or on their way
    for one, right, prompt in zip(found, expected, prompts, strict=True):
        if isinstance(one, str) and one != right:
            assert migrations and one in moved_texts(llm, prompt)
    assert sum(isinstance(one, str) for one in found) >= len(found) // 2
    end = time.monotonic() + SECONDS
    while isinstance(again := asyncio.run(ask(alone.async_client, prompts[0])), APIStatusError):
        # A killed worker is in the folder of discovery for some seconds.
        assert again.status_code == 503 and time.monotonic() < end
    assert again == expected[0]
    until(lambda: alone.metric("decode-1", "slots_used") == 0)
    until(lambda: alone.metric("prefill-0", "slots_used") == 0)
    print(f"migrations {migrations}: {len(failed)} of {len(found)} failed")


def prefill(cluster: Cluster, prompt: list[int]) -> dict[str, Any]:
    """What a prefill worker answers the frontend."""
    end = time.monotonic() + SECONDS
    while "chunks" not in (answer := cluster.direct("prefill", {"token_ids": prompt} | GREEDY)):
        # A killed worker is in the folder of discovery for some seconds.
        assert "onnect" in answer["error"] and time.monotonic() < end, answer
    (chunk,) = answer["chunks"]
    assert chunk["finish_reason"] == "length" and len(chunk["token_ids"]) == 1
    return dict(chunk["disaggregated_params"])


def decode(cluster: Cluster, prompt: list[int], params: dict[str, Any]) -> dict[str, Any]:
    handed = {"prefill_result": {"disaggregated_params": params}}
    return cluster.direct("backend", {"token_ids": prompt} | GREEDY | handed)


def text_of(llm: LLM, answer: dict[str, Any]) -> list[int]:
    return [token for chunk in answer["chunks"] for token in chunk["token_ids"]]


def test_prefill_worker_killed_before_the_fetch_fails_only_the_request(
    alone: Cluster, build: Path, llm: LLM
) -> None:
    prompt = ids_of(llm, 3)
    (expected,) = llm.generate([prompt], SamplingParams(max_tokens=TOKENS))
    alone.worker(build, "prefill", "prefill-0", LEASE)
    alone.worker(build, "decode", "decode-0", LEASE)
    alone.wait_for_workers()
    assert text_of(llm, decode(alone, prompt, prefill(alone, prompt))) == list(expected.token_ids)
    handed = prefill(alone, prompt)
    alone.kill("prefill-0")
    began = time.monotonic()
    answer = decode(alone, prompt, handed)
    assert "prefill worker" in answer["error"] and time.monotonic() - began < SECONDS
    assert alone.metric("decode-0", "slots_used") == 0
    alone.worker(build, "prefill", "prefill-1", LEASE)
    alone.wait_for_workers()
    assert text_of(llm, decode(alone, prompt, prefill(alone, prompt))) == list(expected.token_ids)


def test_row_that_nobody_fetches_is_freed_and_its_late_reader_refused(
    alone: Cluster, build: Path, llm: LLM
) -> None:
    prompt = ids_of(llm, 5)
    alone.worker(build, "prefill", "prefill-0", LEASE)
    alone.worker(build, "decode", "decode-0", LEASE)
    alone.wait_for_workers()
    handed = prefill(alone, prompt)
    assert alone.metric("prefill-0", "slots_used") == 1
    until(lambda: alone.metric("prefill-0", "leases_expired_total") == 1)
    until(lambda: alone.metric("prefill-0", "slots_used") == 0)
    answer = decode(alone, prompt, handed)
    assert "gave the prompt's row up before it was fetched" in answer["error"]
    assert alone.metric("decode-0", "rows_failed_total") == 1


def test_prompt_of_another_build_is_refused(
    alone: Cluster, build: Path, llm: LLM, tmp_path: Path
) -> None:
    stale = tmp_path / "stale.build"
    shutil.copytree(build, stale)
    manifest = Manifest.read(stale)
    versions = manifest.versions | {"snapexport": "0.0.1"}
    manifest.model_copy(update={"versions": versions}).write(stale)
    prompt = ids_of(llm, 7)
    alone.worker(stale, "prefill", "prefill-0", LEASE)
    alone.worker(build, "decode", "decode-0", LEASE)
    alone.wait_for_workers()
    answer = decode(alone, prompt, prefill(alone, prompt))
    assert "was prefilled by another build" in answer["error"]
    assert alone.metric("decode-0", "rows_moved_total") == 0
    until(lambda: alone.metric("prefill-0", "slots_used") == 0)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ({"row": []}, "the prefill worker's row has other sizes"),
        ({"prompt_length": 5}, "the prefill worker's row is of another prompt"),
        ({"first_token": 1 << 31}, "is not a token of the model"),
        ({"unknown": 1}, "hand-over is not valid: unknown"),
        ({"agent": "bm8gYWdlbnQ="}, "NIXL does not know the prefill worker"),
        ({"agent": "?"}, "NIXL does not know the prefill worker"),
        ({"lease": 5}, "gave the prompt's row up before it was fetched"),
    ],
)
def test_spoilt_hand_over_is_refused(
    pair: Cluster, llm: LLM, spoil: dict[str, Any], why: str
) -> None:
    prompt = ids_of(llm, 9, 300)
    answer = decode(pair, prompt, prefill(pair, prompt) | spoil)
    assert why in answer["error"]
    assert pair.metric("decode-0", "slots_used") == 0


def test_decode_worker_without_a_prefilled_prompt_says_so(pair: Cluster, llm: LLM) -> None:
    answer = pair.direct("backend", {"token_ids": ids_of(llm, 9, 300)} | GREEDY)
    assert "no prefill worker has seen" in answer["error"]


@pytest.mark.parametrize("component", ["prefill", "backend"])
def test_probe_of_a_workers_health_keeps_no_batch_slot(pair: Cluster, component: str) -> None:
    until(lambda: pair.metric("prefill-0", "leases") == 0)  # of the tests before
    probe = {"token_ids": [0], "stop_conditions": {"max_tokens": 1}, HEALTH_CHECK_KEY: True}
    (chunk,) = pair.direct(component, probe)["chunks"]
    assert len(chunk["token_ids"]) == 1 and "disaggregated_params" not in chunk
    assert pair.metric("prefill-0", "leases") == 0
    for member in ("prefill-0", "decode-0"):
        until(lambda member=member: pair.metric(member, "slots_used") == 0)  # type: ignore[misc]


@pytest.fixture(scope="module")
def pair(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A prefill and a decode worker without a frontend."""
    with Cluster(tmp_path_factory.mktemp("pair")) as running:
        running.worker(build, "prefill", "prefill-0", LEASE)
        running.worker(build, "decode", "decode-0", LEASE)
        running.wait_for_workers()
        yield running
