"""Clients who finish and leave at random, and a frontend that is started anew."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from snapexport import LLM, SamplingParams
from snapexport.vault import make_prompt
from tests.patience import until
from tests.serving.dynamo.processes import NAME, Cluster
from tests.serving.process import SECONDS as PATIENCE
from tests.serving.process import resident_bytes

CLIENTS = 32
SECONDS = float(os.environ.get("SNAPEXPORT_SOAK_SECONDS", "20"))
TOKENS = 40
WORKERS = "prefill-0", "decode-0", "decode-1"
STALL = 4
"""Seconds for which a worker answers nothing, as one behind a link that is down does."""


@pytest.fixture(scope="module")
def texts(llm: LLM) -> dict[str, str]:
    """{prompt: its answer in one process}, of mixed lengths."""
    assert llm.tokenizer
    prompts = [make_prompt(seed, 60 + 90 * seed).text for seed in range(20)]
    ids = [llm.tokenizer.encode(text, add_special_tokens=False).ids for text in prompts]
    done = llm.generate(ids, SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    return {text: one.text for text, one in zip(prompts, done, strict=True)}


async def streamed(client: AsyncOpenAI, prompt: str, chunks: int | None = None) -> str:
    """The answer's text; its beginning if the client leaves after so many chunks."""
    parts: list[str] = []
    async with await client.completions.create(
        model=NAME,
        prompt=prompt,
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    ) as stream:
        async for chunk in stream:
            parts += [choice.text for choice in chunk.choices]
            if chunks is not None and len(parts) >= chunks:
                break
    return "".join(parts)


async def visit(client: AsyncOpenAI, texts: dict[str, str], seed: int, until_: float) -> Counter:
    """One client: finishes two answers of three, and leaves the others."""
    rng, seen = random.Random(seed), Counter[str]()
    while time.monotonic() < until_:
        prompt = rng.choice(list(texts))
        leaves = rng.random() < 1 / 3
        text = await streamed(client, prompt, rng.randint(1, 10) if leaves else None)
        right = texts[prompt].startswith(text) if leaves else texts[prompt] == text
        seen["left" if leaves else "finished"] += 1
        seen["crossed"] += not right
    return seen


def assert_free(cluster: Cluster) -> None:
    """Every batch slot and every lease is free in the end."""
    for member in WORKERS:
        until(lambda member=member: cluster.metric(member, "slots_used") == 0)
    until(lambda: cluster.metric("prefill-0", "leases") == 0)


def resident(cluster: Cluster, member: str) -> int:
    """Bytes of a worker's memory."""
    return resident_bytes(cluster.members[member].process.pid)


def test_clients_cross_no_answer_and_leave_nothing(cluster: Cluster, texts: dict[str, str]) -> None:
    async def all_clients() -> list[Counter]:
        end = time.monotonic() + SECONDS
        client = cluster.async_client
        return await asyncio.gather(*(visit(client, texts, seed, end) for seed in range(CLIENTS)))

    asyncio.run(_warm(cluster, texts))
    before = {member: resident(cluster, member) for member in WORKERS}
    seen = sum(asyncio.run(all_clients()), Counter())
    least = SECONDS / 120 * CLIENTS
    assert seen["finished"] > 2 * least and seen["left"] > least, seen
    assert_free(cluster)
    grown = {member: resident(cluster, member) / before[member] for member in WORKERS}
    assert all(ratio < 1.25 for ratio in grown.values()), grown


async def _warm(cluster: Cluster, texts: dict[str, str]) -> None:
    client = cluster.async_client
    await asyncio.gather(*(streamed(client, prompt) for prompt in texts))


def test_stalled_prefill_worker_delays_answers_and_changes_none(
    cluster: Cluster, texts: dict[str, str]
) -> None:
    process = cluster.members["prefill-0"].process

    async def run() -> list[str]:
        client = cluster.async_client
        asking = [asyncio.ensure_future(streamed(client, prompt)) for prompt in texts]
        await asyncio.sleep(0.3)
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(STALL)
        process.send_signal(signal.SIGCONT)
        return await asyncio.gather(*asking)

    assert asyncio.run(run()) == list(texts.values())
    assert_free(cluster)


def test_frontend_that_is_killed_and_started_again_finds_its_workers(
    alone: Cluster, build: Path, texts: dict[str, str]
) -> None:
    """Its streams break with an error. The workers free their batch slots, and serve the next."""
    alone.serve(build, prefill=1, decode=2)

    async def broken() -> list[str | BaseException]:
        client = alone.async_client
        asking = [asyncio.ensure_future(streamed(client, prompt)) for prompt in texts]
        await asyncio.sleep(0.5)
        alone.kill("frontend")
        return await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), PATIENCE)

    for prompt, answer in zip(texts, asyncio.run(broken()), strict=True):
        assert answer == texts[prompt] or isinstance(answer, Exception), answer
    assert_free(alone)
    alone.frontend(build, migrations=0)
    alone.wait()
    prompt = next(iter(texts))
    assert asyncio.run(streamed(alone.async_client, prompt)) == texts[prompt]
