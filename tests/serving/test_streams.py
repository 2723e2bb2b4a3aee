"""Streams of outputs: slow readers, cancellations, a full queue and the end."""

import asyncio
import threading
from typing import Any

import pytest

from snapexport.runtime.requests.request import SamplingParams
from snapexport.serving import streams as streams_module
from snapexport.serving.worker import GenerationError
from tests.serving.openai.conftest import started, until
from tests.serving.openai.watched_llm import SLOTS, make_llm
from tests.serving.process import SECONDS

pytestmark = pytest.mark.anyio


async def test_slow_reader_gets_joined_outputs_and_stalls_nobody() -> None:
    llm, alone = make_llm(), make_llm()
    streams = started(llm).streams
    params = SamplingParams(max_tokens=300)
    slow, quick = (streams.stream(llm.read([n, 2], params)) for n in (1, 5))
    outputs = [await anext(slow)]
    async for _ in quick:
        pass
    await until(lambda: not llm.busy)
    outputs += [output async for output in slow]
    assert len(outputs) <= 3
    (expected,) = alone.generate([[1, 2]], params)
    assert tuple(i for one in outputs for i in one.token_ids) == expected.token_ids
    assert "".join(one.text for one in outputs) == expected.text
    await streams.close()


async def test_reader_that_leaves_too_many_tokens_unread_loses_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams_module, "MOST_UNREAD_TOKENS", 20)
    llm = make_llm()
    llm.seconds = 0.001
    streams = started(llm).streams
    stream = streams.stream(llm.read([1], SamplingParams(max_tokens=1900)))
    await anext(stream)
    await until(lambda: not llm.busy)
    output = await anext(stream)
    assert 20 < len(output.token_ids) < 200
    with pytest.raises(GenerationError, match="left 20 tokens unread"):
        await anext(stream)
    await streams.close()


async def test_closing_a_stream_frees_its_batch_slot_within_a_few_steps() -> None:
    llm = make_llm()
    llm.seconds = 0.01
    streams = started(llm).streams
    params = SamplingParams(max_tokens=1900)
    requests = [streams.stream(llm.read([n], params)) for n in range(SLOTS)]
    leaves, stays, *_ = requests
    for stream in requests:
        await anext(stream)
    assert streams.worker.values()["slots_used"] == SLOTS
    await leaves.aclose()
    steps = 0
    while llm.slots_used == SLOTS:
        steps += len((await anext(stays)).token_ids)
    assert steps <= 20  # of 1900; a busy machine delays the cancellation
    await until(lambda: streams.worker.counters["requests_cancelled_total"] == 1)
    for stream in requests:
        await stream.aclose()
    await streams.close()


async def test_close_ends_streams_and_refuses_new_ones() -> None:
    llm = make_llm()
    llm.seconds = 0.005
    streams = started(llm).streams
    stream = streams.stream(llm.read([1], SamplingParams(max_tokens=1900)))
    await anext(stream)
    await streams.close()
    with pytest.raises(GenerationError, match="shutting down"):
        async for _ in stream:
            pass
    with pytest.raises(GenerationError, match="shutting down") as stopping:
        await anext(streams.stream(llm.read([1])))
    assert stopping.value.code == "stopping" and not streams.worker.is_running


async def test_event_loop_runs_on_while_a_step_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm, begun, ends = make_llm(), threading.Event(), threading.Event()
    step = llm.step

    def long() -> Any:
        begun.set()
        assert ends.wait(SECONDS), "the loop waits for the step"
        return step()

    monkeypatch.setattr(llm, "step", long)
    streams = started(llm).streams
    task = asyncio.ensure_future(anext(streams.stream(llm.read([1]))))
    await until(begun.is_set)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()
    ends.set()
    await task
    await streams.close()
