"""Clients that leave, errors amid a stream, limits of a body, and a server that drains."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from http.client import HTTPConnection
from typing import Any, TypeVar

import openai
import pytest

from snapexport.serving.model import Model
from snapexport.serving.serve import SIGNALS, Signals, drain
from snapexport.serving.streams import Streams
from tests.serving.openai.conftest import Served, soon, started, until
from tests.serving.openai.test_health import health
from tests.serving.openai.watched_llm import SLOTS
from tests.serving.process import SECONDS

Result = TypeVar("Result")

LONG: dict[str, Any] = {"model": "model", "prompt": "a", "max_tokens": 1900}


def test_client_that_leaves_a_stream_frees_its_batch_slot(
    slow: Served, client: openai.OpenAI
) -> None:
    streams = [client.completions.create(stream=True, n=n, **LONG) for n in range(1, SLOTS)]
    assert soon(lambda: slow.llm.slots_used == SLOTS)
    for stream in streams:
        stream.close()
    assert soon(lambda: not slow.llm.busy)


def test_client_that_leaves_before_its_answer_frees_its_batch_slot(slow: Served) -> None:
    with pytest.raises(openai.APITimeoutError):
        slow.client().with_options(timeout=0.2).completions.create(**LONG)
    assert soon(lambda: not slow.llm.busy)


def test_error_within_a_stream_is_its_last_event(
    slow: Served, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = iter(client.completions.create(stream=True, **LONG))
    next(stream)
    monkeypatch.setattr(slow.llm.executor, "decode", lambda *given: 1 / 0)
    with pytest.raises(openai.APIError, match="ZeroDivisionError"):
        list(stream)


@pytest.mark.parametrize("stream", [False, True])
def test_request_seconds_bound_an_answer(
    slow: Served, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(slow.model.streams, "request_seconds", 0.3)
    with pytest.raises(openai.APIError, match=r"took longer than 0\.3 s") as given_up:
        list(client.completions.create(stream=stream, **LONG))
    assert given_up.value.code == "timeout"
    assert soon(lambda: not slow.llm.busy)


def test_request_whose_body_does_not_arrive_gets_408(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapexport.serving.openai.bodies.parsing.BODY_SECONDS", 0.1)
    connection = HTTPConnection(served.url.removeprefix("http://"), timeout=SECONDS)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"{")
    assert connection.getresponse().status == 408
    connection.close()


def test_drain_lets_streams_finish_and_refuses_new_requests(
    slow: Served, leaving: "Leaving"
) -> None:
    stream = slow.client().completions.create(stream=True, **LONG | {"max_tokens": 30})
    drained = leaving.begin(seconds=SECONDS)
    assert soon(lambda: slow.api.gate.closed)
    with pytest.raises(openai.InternalServerError, match="shutting down") as refused:
        slow.client().completions.create(**LONG)
    assert refused.value.response.headers["retry-after"]
    assert health(slow)[0] == 503
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
    drained.result(SECONDS)


@pytest.mark.parametrize("hurried", [False, True])
def test_drain_ends_streams_after_its_time_or_a_second_signal(
    slow: Served, leaving: "Leaving", hurried: bool
) -> None:
    """After its time, or on a second signal."""
    stream = slow.client().completions.create(stream=True, **LONG)
    drained = leaving.begin(seconds=2 * SECONDS if hurried else 0.2)
    if hurried:
        leaving.hurry()
    with pytest.raises(openai.APIError, match="shutting down"):
        list(stream)
    drained.result(SECONDS)


class Leaving:
    """Drains the API of `served`, but for its socket, and lets it come back."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._signals = Signals()
        self._before = served.model.streams
        self.model = self._in_loop(self._start()).result(SECONDS)  # of its own: it will be closed
        self._use(self.model.streams)

    def begin(self, seconds: float) -> "Future[None]":
        close = self.model.streams.close
        return self._in_loop(drain(self._served.api, close, self._signals, seconds))

    def hurry(self) -> None:
        self._served.loop.call_soon_threadsafe(self._signals.hurried.set)

    def undo(self) -> None:
        self._in_loop(self.model.streams.close()).result(SECONDS)
        self._served.api.gate.closed = False
        self._use(self._before)

    def _use(self, streams: Streams) -> None:
        self._served.model.streams = self._served.api.health.streams = streams

    def _in_loop(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return asyncio.run_coroutine_threadsafe(work, self._served.loop)

    async def _start(self) -> Model:
        return started(self._served.llm)


@pytest.fixture
def leaving(served: Served) -> Iterator[Leaving]:
    leaving = Leaving(served)
    yield leaving
    leaving.undo()


def test_first_signal_drains_and_second_hurries(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    taken: list[int] = []
    take = Signals._take

    def counted(self: Signals, number: int) -> None:
        take(self, number)
        taken.append(number)

    monkeypatch.setattr(Signals, "_take", counted)
    monkeypatch.setattr(Signals, "_end_soon", lambda _, status: ends.append(status))

    async def scenario() -> list[bool]:
        signals = Signals()
        signals.listen()
        states = []
        for count, number in enumerate((signal.SIGTERM, signal.SIGINT, signal.SIGTERM), 1):
            signal.raise_signal(number)
            await until(lambda count=count: len(taken) == count)  # type: ignore[misc]
            states += [signals.received.is_set(), signals.hurried.is_set()]
        return states

    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        assert asyncio.run(scenario()) == [True, False, True, True, True, True]
        assert ends == [128 + signal.SIGINT]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
