"""Clients that leave, answers that break off, health, and a server that is about to end."""

import asyncio
import json
import signal
import socket
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from http.client import HTTPConnection
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
import openai
import pytest

from snapexport.contract.errors import UserError
from snapexport.serving.openai import front, pulse, watch
from snapexport.serving.openai.ending import Ending
from snapexport.serving.openai.errors import ApiError
from snapexport.serving.openai.front import drain
from snapexport.serving.openai.triton import TritonGenerator
from tests.openai.conftest import SLOTS, Served, soon

Result = TypeVar("Result")

LONG: dict[str, Any] = {"model": "model", "prompt": "a", "max_tokens": 1900}


@pytest.fixture
def slow(served: Served) -> Served:
    served.triton.seconds = 0.01
    return served


def test_a_client_that_leaves_a_stream_frees_its_slot(slow: Served, client: openai.OpenAI) -> None:
    streams = [client.completions.create(stream=True, n=n, **LONG) for n in range(1, SLOTS)]
    assert soon(lambda: slow.triton.llm.slots_used == SLOTS)
    for stream in streams:
        stream.close()
    assert soon(lambda: not slow.triton.llm.busy)


def test_a_client_that_leaves_before_its_answer_frees_its_slot(slow: Served) -> None:
    with pytest.raises(openai.APITimeoutError):
        slow.client().with_options(timeout=0.2).completions.create(**LONG)
    assert soon(lambda: not slow.triton.llm.busy)


def test_an_error_amid_a_stream_is_its_last_event(slow: Served, client: openai.OpenAI) -> None:
    stream = iter(client.completions.create(stream=True, **LONG))
    next(stream)
    slow.triton.refusal = grpc.StatusCode.INTERNAL, "the engine is gone"
    with pytest.raises(openai.APIError, match="the engine is gone"):
        list(stream)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_is_given_up(
    slow: Served, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(slow.api.pulse._generator, "_seconds", 0.3)
    with pytest.raises(openai.APIError, match="took longer than") as given_up:
        list(client.completions.create(stream=stream, **LONG))
    assert given_up.value.code == "timeout"
    assert soon(lambda: not slow.triton.llm.busy)


def test_a_server_that_has_gone_is_no_health(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert health(served) == (200, {"status": "ok"})
    served.triton.refusal = grpc.StatusCode.INTERNAL, "the stub is not healthy"
    assert health(served)[0] == 200  # the sign of life is fresh
    monkeypatch.setattr(pulse, "FRESH_SECONDS", 0)
    status, body = health(served)
    assert status == 503 and "the stub is not healthy" in body["error"]["message"]


def test_a_full_queue_is_health(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "FRESH_SECONDS", 0)
    full = "UNAVAILABLE: 67 requests run and wait already"
    served.triton.refusal = grpc.StatusCode.UNAVAILABLE, full
    assert health(served)[0] == 200
    started = asyncio.run_coroutine_threadsafe(served.api.pulse.require_token(), served.loop)
    assert "67 requests" in str(started.exception(3)), "the first token must be one"


def test_a_triton_that_cannot_be_reached_is_no_health() -> None:
    """gRPC itself then says UNAVAILABLE: that is no full queue."""

    async def check() -> None:
        nowhere = TritonGenerator("127.0.0.1:9", "model", seconds=5)
        try:
            await pulse.Pulse(nowhere, patience_seconds=10).check()
        finally:
            await nowhere.close()

    with pytest.raises(ApiError) as lifeless:
        asyncio.run(check())
    assert lifeless.value.code == pulse.FAILED


def test_a_model_that_does_not_answer_is_no_health(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "FRESH_SECONDS", 0)
    monkeypatch.setattr(served.triton.llm, "step", list)
    status, body = health(served)
    assert status == 503 and "none came in 1 s" in body["error"]["message"]


def health(served: Served) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(f"{served.url}/health", timeout=5) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_a_slow_answer_is_no_failure(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a server with long prompts would be taken for a broken one."""
    monkeypatch.setattr(pulse, "FRESH_SECONDS", 0)
    monkeypatch.setattr(slow.api.pulse._generator, "_seconds", 0.1)
    monkeypatch.setattr(slow.triton.llm, "step", list)
    assert health(slow)[1]["error"]["code"] == pulse.SILENT


class DeadServer:
    is_running = False

    def log(self) -> str:
        return "the last line"


def test_a_dead_server_or_model_ends_the_command(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Any = DeadServer()
    monkeypatch.setattr(pulse, "FRESH_SECONDS", 0)
    monkeypatch.setattr(watch, "MODEL_SECONDS", 0.01)
    with pytest.raises(UserError, match=r"ended by itself.*\n.*the last line"):
        asyncio.run(watch.server_ends(server))
    failing = asyncio.run_coroutine_threadsafe(
        watch.model_fails(server, served.api.pulse), served.loop
    )
    with pytest.raises(TimeoutError):
        failing.exception(0.2)
    served.triton.refusal = grpc.StatusCode.INTERNAL, "the stub is not healthy"
    assert "no longer answers" in str(failing.exception(3))


def test_a_body_that_does_not_come_is_given_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapexport.serving.openai.connection.BODY_SECONDS", 0.1)
    connection = HTTPConnection(served.url.removeprefix("http://"), timeout=5)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"{")
    assert connection.getresponse().status == 408
    connection.close()


def test_connections_beyond_measure_are_turned_away(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "MOST_CONNECTIONS", 2)

    def status(port: int) -> int:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/v1/models")
        with connection.getresponse() as answer:
            return answer.status

    async def scenario() -> list[int]:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        async with front.listening(served.api, listener):
            alone = await asyncio.to_thread(status, port)
            _, idle = await asyncio.open_connection("127.0.0.1", port)
            beside = await asyncio.to_thread(status, port)
            idle.close()
        return [alone, beside]

    assert asyncio.run(scenario()) == [200, 503]


def test_metrics_are_passed_on(served: Served) -> None:
    with urlopen(f"{served.url}/metrics", timeout=5) as answer:
        assert answer.read() == b"answers_total 42\n"


def test_a_server_that_ends_lets_streams_finish(slow: Served, leaving: "Leaving") -> None:
    stream = slow.client().completions.create(stream=True, **LONG | {"max_tokens": 30})
    drained = leaving.begin(seconds=5)
    assert soon(lambda: slow.api.gate.closed)
    with pytest.raises(openai.InternalServerError, match="shutting down") as refused:
        slow.client().completions.create(**LONG)
    assert refused.value.response.headers["retry-after"]
    assert health(slow)[0] == 503
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
    drained.result(3)


@pytest.mark.parametrize("hurried", [False, True])
def test_a_server_that_ends_cuts_off_what_goes_on(
    slow: Served, leaving: "Leaving", hurried: bool
) -> None:
    """After its time, or when it is told a second time."""
    stream = slow.client().completions.create(stream=True, **LONG)
    drained = leaving.begin(seconds=30 if hurried else 0.2)
    if hurried:
        leaving.hurry()
    with pytest.raises(openai.APIError, match="shutting down"):
        list(stream)
    drained.result(3)


class Leaving:
    """Ends the API behind `served`, but for its socket, and lets it come back."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._ending = Ending()
        self._before = served.api.pulse._generator
        self.generator = self._in_loop(self._connect()).result(3)
        served.api.pulse._generator = self.generator

    def begin(self, seconds: float) -> "Future[None]":
        work = drain(self._served.api, self.generator.close, self._ending, seconds)
        return self._in_loop(work)

    def hurry(self) -> None:
        self._served.loop.call_soon_threadsafe(self._ending.hurried.set)

    def undo(self) -> None:
        self._served.api.gate.closed = False
        self._served.api.pulse._generator = self._before

    def _in_loop(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return asyncio.run_coroutine_threadsafe(work, self._served.loop)

    async def _connect(self) -> TritonGenerator:
        """A connection of its own, since it will be closed."""
        return TritonGenerator(self._served.triton.address, "model", seconds=20)


@pytest.fixture
def leaving(served: Served) -> Iterator[Leaving]:
    leaving = Leaving(served)
    yield leaving
    leaving.undo()


def test_the_first_signal_asks_and_the_second_hurries() -> None:
    async def scenario(ending: Ending) -> list[bool]:
        ending.listen()
        states = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
            await asyncio.sleep(0.01)
            states += [ending.asked.is_set(), ending.hurried.is_set()]
        return states

    before = signal.getsignal(signal.SIGTERM)
    with Ending() as ending:
        assert asyncio.run(scenario(ending)) == [True, False, True, True]
        signal.raise_signal(signal.SIGTERM)  # what is tidied up now is not interrupted
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_before_there_is_anything_to_end_leaves_at_once() -> None:
    with Ending(), pytest.raises(SystemExit) as left:
        signal.raise_signal(signal.SIGTERM)
    assert left.value.code == 128 + signal.SIGTERM
