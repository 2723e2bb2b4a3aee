"""Soaks the server: 64 clients that start and cancel at random.

No streams are crossed, no batch slot is lost, and memory stays flat.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import tritonclient.grpc.aio as grpc

from snapexport import LLM
from tests.serving.process import resident_bytes
from tests.serving.triton.client import IDLE, Client, tensors
from tests.serving.triton.processes import backend_of
from tests.serving.triton.requests import RequestCase, make
from tests.serving.triton.server import Server

SECONDS = float(os.environ.get("SNAPEXPORT_SOAK_SECONDS", "20"))
LONG = 60
"""Seconds from which the line through the samples of memory is judged."""
CLIENTS = 64
SLOTS = 8
SETTLED = 0.4
"""Share of the time until memory must be flat: pools and arenas fill at first."""
GROWTH = 4 << 20
"""Bytes that a process may gain in all the rest of it, by the line that fits its samples best."""
MOST = 1.25
"""A process's memory at the end, as a multiple of that after every case was streamed once."""


@dataclass
class Record:
    """Outcomes of the clients, and samples of the processes' memory."""

    fates: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[float, int, int]] = field(default_factory=list)


def test_soak_of_64_clients_crosses_no_stream_and_leaks_no_memory(
    server: Server, client: Client, llm: LLM
) -> None:
    before = client.quiet()
    cases, record = make(llm, 40, max_tokens=120), Record()
    asyncio.run(warm(server, cases))
    asyncio.run(soak(server, client, cases, record))
    print(record.fates, growth(record.memory))
    assert not record.wrong, record.wrong[:3]
    assert min(record.fates[fate] for fate in ("finished", "cancelled")) >= SECONDS / 6
    after = client.quiet()
    assert after["requests_failed_total"] == before["requests_failed_total"]
    assert after["requests_refused_total"] == before["requests_refused_total"]
    assert_every_slot_works(client, cases)
    for ratio in np.divide(record.memory[-1][1:], record.memory[0][1:]):
        assert ratio < MOST, f"memory grew by {ratio - 1:.0%}"
    for process, grown in growth(record.memory).items() if SECONDS >= LONG else ():
        assert grown < GROWTH, f"{process} grew by {grown / (1 << 20):.1f} MiB"


async def warm(server: Server, cases: list[RequestCase]) -> None:
    """All cases at once, so that pools and arenas are filled."""
    async with grpc.InferenceServerClient(server.grpc) as channel:
        await asyncio.gather(*(streamed(channel, case, None) for case in cases))


async def soak(server: Server, client: Client, cases: list[RequestCase], record: Record) -> None:
    end = time.monotonic() + SECONDS
    async with grpc.InferenceServerClient(server.grpc) as channel:
        clients = [
            one_client(random.Random(number), channel, cases, record, end)
            for number in range(CLIENTS)
        ]
        await asyncio.gather(weigh(server, client, record, end), *clients)


async def one_client(
    rng: random.Random,
    channel: grpc.InferenceServerClient,
    cases: list[RequestCase],
    record: Record,
    end: float,
) -> None:
    while time.monotonic() < end:
        case = rng.choice(cases)
        patience = rng.choice([None, None, rng.randrange(0, 100)])
        fate, text = await streamed(channel, case, patience)
        record.fates[fate] += 1
        if text != case.text if fate == "finished" else not case.text.startswith(text):
            record.wrong.append(f"{fate}: {text!r} is not {case.text!r}")


async def streamed(
    channel: grpc.InferenceServerClient, one: RequestCase, patience: int | None
) -> tuple[str, str]:
    """Stream until the end, or until patience for so many responses is lost."""

    async def requests() -> AsyncIterator[dict[str, object]]:
        yield {"model_name": "vault", "inputs": tensors(one.inputs | {"stream": True})}

    responses, text, reason = channel.stream_infer(requests()), "", b""
    count = 0
    while not reason:
        if patience is not None and count >= patience:
            responses.cancel()
            return "cancelled", text
        result, error = await anext(responses)
        if error:
            return f"error {error}", text
        text += result.as_numpy("text_output").item().decode()
        reason = result.as_numpy("finish_reason").item()
        count += 1
    return "finished", text


async def weigh(server: Server, client: Client, record: Record, end: float) -> None:
    """Sample the memory of the server and of the model's process."""
    backend, began = backend_of(server, client.name), time.monotonic()
    while time.monotonic() < end:
        now = time.monotonic() - began
        record.memory.append((now, resident_bytes(server.pid), resident_bytes(backend)))
        await asyncio.sleep(SECONDS / 100)


def growth(memory: list[tuple[float, int, int]]) -> dict[str, float]:
    """Bytes that each process gained after the beginning: the best line's slope times the time."""
    times, *processes = np.array(memory)[int(SETTLED * len(memory)) :].T
    spans = [float(np.polyfit(times, one, 1)[0] * (times[-1] - times[0])) for one in processes]
    return dict(zip(("the server", "the backend"), spans, strict=True))


def assert_every_slot_works(client: Client, cases: list[RequestCase]) -> None:
    """All batch slots run at once, and later answers are right."""
    long = {"text_input": "The vault", "max_tokens": 2200, "ignore_eos": True}
    with ExitStack() as stack:
        for stream in [stack.enter_context(client.stream(**long)) for _ in range(SLOTS)]:
            stream.next()
        client.settled(requests_running=SLOTS, requests_waiting=0, slots_used=SLOTS)
    client.settled(**IDLE)
    for one in cases[:SLOTS]:
        assert client.generate(**one.inputs).text == one.text
