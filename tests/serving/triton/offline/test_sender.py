"""The sender over fake ports: responses, clients that leave, and ports that fail."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from snapexport.runtime.requests.request import OutputDelta, Request, SamplingParams
from snapexport.serving.streams import Stream
from snapexport.serving.triton.sender import Sender
from snapexport.serving.triton.tensors import Inputs
from snapexport.serving.worker import Failure, GenerationError
from tests.serving.process import SECONDS

pytestmark = pytest.mark.anyio

OUTPUTS = frozenset({"text_output", "finish_reason", "output_ids"})


class FakePort:
    """Records sent responses. `gone`: the client left; `broken`: sending fails."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bool]] = []
        self.failed: list[tuple[str, str]] = []
        self.gone = False
        self.broken = False

    def send(self, tensors: Mapping[str, Any], is_last: bool) -> None:
        if self.broken:
            raise RuntimeError("the response cannot be sent")
        self.sent.append((tensors["text_output"][0, 0].decode(), is_last))

    def fail(self, message: str, code: str) -> None:
        self.failed.append((message, code))

    def is_cancelled(self) -> bool:
        return self.gone


class FakeStreams:
    """Yields what a test puts into a stream. `worker.cancel` records the stream."""

    def __init__(self) -> None:
        self.cancelled: list[Stream] = []
        self.left: list[Stream] = []
        self.worker = SimpleNamespace(cancel=lambda stream, _: self.cancelled.append(stream))

    async def outputs(self, stream: Stream) -> AsyncGenerator[OutputDelta]:
        is_last = False
        try:
            while not is_last:
                output = await stream.next()
                is_last = output.finish_reason is not None
                yield output
        finally:
            if not is_last:
                self.left.append(stream)


class Bench:
    """One request; make it in a running event loop."""

    def __init__(self, *, streams: bool = True, echo: bool = False) -> None:
        params = SamplingParams()
        self.port, self.streams = FakePort(), FakeStreams()
        self.stream = Stream(request=Request((1,), params))
        self.inputs = Inputs(
            "prompt ", "text_input", params, streams, echo, False, False, 0.0, OUTPUTS
        )
        sender: Any = Sender(self.streams, str)  # type: ignore[arg-type]
        self.answer = asyncio.ensure_future(sender.answer(self.stream, self.inputs, self.port))

    async def put(self, *events: OutputDelta | Failure) -> None:
        """All events of one step, which are sent before it returns."""
        for event in events:
            self.stream.put(event)
        for _ in range(20):  # turns of the loop: nothing else is waited for
            await asyncio.sleep(0)


def output(text: str, reason: Any = None) -> OutputDelta:
    return OutputDelta(0, text, (len(text),), reason)


async def test_responses_arrive_in_order_and_the_last_is_final() -> None:
    bench = Bench()
    await bench.put(output("a"))
    await bench.put(output("b", "stop"))
    await bench.answer
    assert (bench.port.sent, bench.port.failed) == ([("a", False), ("b", True)], [])


async def test_failure_is_the_last_response_with_its_code() -> None:
    bench = Bench()
    await bench.put(output("x"), Failure("no", "internal"))
    await bench.answer
    assert (bench.port.sent, bench.port.failed) == ([("x", False)], [("no", "INTERNAL")])


async def test_non_streaming_answer_is_sent_once_with_its_echo() -> None:
    bench = Bench(streams=False, echo=True)
    for text, reason in (("a", None), ("b", None), ("c", "length")):
        await bench.put(output(text, reason))
    await bench.answer
    assert bench.port.sent == [("prompt abc", True)]


async def test_waiting_outputs_are_sent_as_one_response_after_the_echo() -> None:
    bench = Bench(echo=True)
    await bench.put(*map(output, "abc"))
    await bench.put(output("d", "stop"))
    await bench.answer
    assert bench.port.sent == [("prompt abc", False), ("d", True)]


@pytest.mark.parametrize("ends", [False, True])
async def test_client_that_left_cancels_its_request_and_no_ended_one(ends: bool) -> None:
    bench = Bench()
    bench.stream.started = 0.0
    if ends:
        await bench.put(output("a", "stop"))
    await asyncio.sleep(0.05)
    assert bench.streams.cancelled == []
    bench.port.gone = True
    async with asyncio.timeout(SECONDS):
        while not (bench.streams.cancelled or bench.answer.done()):
            await asyncio.sleep(0.001)
    await bench.put(Failure("left", "cancelled"))
    await bench.answer
    assert bench.streams.cancelled == ([] if ends else [bench.stream])
    assert bench.port.failed == ([] if ends else [("left", "CANCELLED")])


async def test_response_that_cannot_be_sent_ends_its_request() -> None:
    bench = Bench()
    bench.port.broken = True
    await bench.put(output("a"))
    with pytest.raises(RuntimeError, match="cannot be sent"):
        await bench.answer
    assert bench.streams.left == [bench.stream]


async def test_refused_request_has_its_code() -> None:
    async def refuse(_: Stream) -> AsyncGenerator[OutputDelta]:
        raise GenerationError(Failure("full", "full"))
        yield

    bench = Bench()
    bench.streams.outputs = refuse  # type: ignore[method-assign]
    await bench.answer
    assert bench.port.failed == [("full", "UNAVAILABLE")]
