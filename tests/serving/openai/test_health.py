"""Health: what counts as a sign of life, what does not, and when the command gives up."""

import asyncio
import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
import pytest

from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
from snapexport.serving.child_process import Backing
from snapexport.serving.openai import health as health_module
from snapexport.serving.openai.errors import ApiError
from snapexport.serving.openai.health import FAILED, SILENT, Health, supervise
from snapexport.serving.triton.behind import MOST_RESTARTS, Restarts
from snapexport.serving.triton.client import TritonGenerator
from tests.serving.openai.conftest import Served, in_process
from tests.serving.openai.watched_llm import SleepingLLM, make_llm


@pytest.fixture
def stale(served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """No output is a sign of health: every check needs a probe."""
    monkeypatch.setattr(health_module, "FRESH_SECONDS", 0)
    return served


def health(served: Served) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(f"{served.url}/health", timeout=5) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_probe_that_succeeds_is_healthy(stale: Served) -> None:
    assert health(stale) == (200, {"status": "ok"})


def test_model_that_does_not_answer_is_unhealthy(stale: Served) -> None:
    stale.llm.stands_still = True
    status, body = health(stale)
    assert status == 503 and "no token came within 1 s" in body["error"]["message"]


@pytest.mark.parametrize("running", ["in process"], indirect=True)
def test_runtime_that_fails_is_unhealthy(stale: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale.llm.executor, "prefill", lambda *given: 1 / 0)
    status, body = health(stale)
    assert status == 503 and body["error"]["code"] == FAILED
    assert "ZeroDivisionError" in body["error"]["message"]


@pytest.mark.parametrize("running", ["triton"], indirect=True)
def test_refusing_server_is_unhealthy_once_no_output_is_fresh(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert health(served)[0] == 200 and served.triton
    served.triton.refusal = grpc.StatusCode.INTERNAL, "the stub is not healthy"
    assert health(served)[0] == 200
    monkeypatch.setattr(health_module, "FRESH_SECONDS", 0)
    status, body = health(served)
    assert status == 503 and "the stub is not healthy" in body["error"]["message"]


@pytest.mark.parametrize("running", ["triton"], indirect=True)
def test_full_queue_is_healthy_but_no_first_token(stale: Served) -> None:
    assert stale.triton
    full = "UNAVAILABLE: 67 requests run and wait already"
    stale.triton.refusal = grpc.StatusCode.UNAVAILABLE, full
    assert health(stale)[0] == 200
    started = asyncio.run_coroutine_threadsafe(stale.api.health.require_token(), stale.loop)
    assert "67 requests" in str(started.exception(3))


def test_full_queue_in_process_is_healthy() -> None:
    async def scenario() -> None:
        llm = make_llm(SleepingLLM)
        llm.stands_still = True
        generator = in_process(llm, max_pending=0)
        checks = Health(generator, patience_seconds=5)
        request = llm.read([1])
        streams = [generator.stream(request) for _ in range(3)]
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0.05)
        await checks.check()
        for one in waiting:
            one.cancel()
        llm.stands_still = False
        await generator.close()

    asyncio.run(scenario())


def test_unreachable_triton_is_unhealthy() -> None:
    """gRPC itself then says UNAVAILABLE, which is not a full queue."""

    async def check() -> None:
        nowhere = TritonGenerator("127.0.0.1:9", "model", seconds=5)
        try:
            await Health(nowhere, patience_seconds=10).check()
        finally:
            await nowhere.close()

    with pytest.raises(ApiError) as unhealthy:
        asyncio.run(check())
    assert unhealthy.value.body["error"]["code"] == FAILED


def test_slow_answer_is_silence_and_not_failure(
    stale: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a server with long prompts would be taken for a broken one."""
    stale.llm.seconds, stale.llm.stands_still = 0.01, True
    monkeypatch.setattr(stale.api.health, "_patience", 0.1)
    assert health(stale)[1]["error"]["code"] == SILENT


class FakeServer:
    is_running = True
    needs_probe = True


def supervision(served: Served, server: FakeServer) -> Any:
    backing = Backing(served.generator, server, log=lambda: "the last line")
    return asyncio.run_coroutine_threadsafe(supervise(backing, served.api.health), served.loop)


def test_server_that_has_ended_ends_the_command(stale: Served) -> None:
    server = FakeServer()
    server.is_running = False
    error = supervision(stale, server).exception(3)
    assert isinstance(error, UserError)
    assert "ended by itself; the end of the server's log:\nthe last line" in error.message


@pytest.mark.parametrize("running", ["triton"], indirect=True)
def test_model_that_fails_twice_ends_the_command(
    stale: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "MODEL_SECONDS", 0.01)
    failing = supervision(stale, FakeServer())
    with pytest.raises(TimeoutError):
        failing.exception(0.2)
    assert stale.triton
    stale.triton.refusal = grpc.StatusCode.INTERNAL, "the stub is not healthy"
    assert "no longer answers" in str(failing.exception(3))


def test_server_that_has_ended_is_started_again_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health_module, "PROCESS_SECONDS", 0.001)
    server, log = FakeTritonServer(), list[str]()

    async def scenario() -> UserError:
        backing = Backing(None, server, restart=Restarts(server, log.append))  # type: ignore[arg-type]
        with pytest.raises(UserError) as ended:
            await asyncio.wait_for(supervise(backing, None), 5)  # type: ignore[arg-type]
        return ended.value

    assert "ended by itself" in asyncio.run(scenario()).message
    assert server.starts == MOST_RESTARTS
    assert [line for line in log if "starting it again" in line][-1].endswith("(3 of 3)")
    assert log.count("Triton answers again") == MOST_RESTARTS


class FakeTritonServer:
    """Dies as soon as it has been ready once."""

    needs_probe = False

    def __init__(self) -> None:
        self.is_running = False
        self.starts = 0
        self._looks = 0

    def kill(self) -> None:
        assert not self.is_running

    def start(self) -> None:
        self.is_running, self.starts, self._looks = True, self.starts + 1, 0

    def reasons(self) -> str:
        return "API misuse"

    def is_ready(self) -> bool:
        self._looks += 1
        self.is_running = self._looks < 3
        return not self.is_running

    def require_starting(self, end: float) -> None:
        assert self.is_running


def test_idle_worker_is_not_probed_until_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "FRESH_SECONDS", 0)
    monkeypatch.setattr(health_module, "MODEL_SECONDS", 0.01)

    async def scenario() -> tuple[int, str]:
        llm = make_llm()
        generator = in_process(llm)
        backing = Backing(generator, generator)
        task = asyncio.ensure_future(supervise(backing, Health(generator)))
        await asyncio.sleep(0.1)
        probes = len(llm.requests)
        monkeypatch.setattr(LLM, "step", lambda self: 1 / 0)
        with pytest.raises(Exception, match="ZeroDivisionError"):
            await anext(generator.stream(llm.read([1])))
        with pytest.raises(UserError) as ended:
            await asyncio.wait_for(task, 3)
        monkeypatch.undo()
        await generator.close()
        return probes, ended.value.message

    assert asyncio.run(scenario()) == (0, "the model no longer answers")
