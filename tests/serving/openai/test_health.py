"""Health: what counts as a sign of life, what does not, and when the command gives up."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from snapexport.errors import UserError
from snapexport.runtime.requests import pulse
from snapexport.runtime.requests.llm import LLM
from snapexport.serving import health as health_module
from snapexport.serving.health import FAILED, SILENT, Health
from snapexport.serving.worker import Failure
from tests.serving.openai.conftest import Served, soon, started
from tests.serving.openai.watched_llm import make_llm
from tests.serving.process import SECONDS


@pytest.fixture
def stale(served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """No output is a sign of health: every check needs a probe."""
    monkeypatch.setattr(health_module, "FRESH_SECONDS", 0)
    monkeypatch.setattr(health_module, "CHECK_SECONDS", 0.01)
    return served


def health(served: Served) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(f"{served.url}/health", timeout=SECONDS) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_probe_that_succeeds_is_healthy(stale: Served) -> None:
    assert health(stale) == (200, {"status": "ok"})


def test_model_that_finishes_nothing_is_silent(
    stale: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure would end the command."""
    monkeypatch.setattr(pulse, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(stale.llm.pulse, "longest", 0.0)
    stale.llm.stands_still = True
    assert soon(lambda: health(stale)[0] == 503)
    assert health(stale)[1]["error"]["code"] == SILENT
    assert "no step has ended for" in health(stale)[1]["error"]["message"]


def test_check_waits_for_no_prompt(stale: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes longer than a check; the second prompt waits for the first."""
    monkeypatch.setattr(health_module, "WAIT_SECONDS", 0.01)
    stale.llm.seconds = 0.03
    before = len(stale.llm.requests)
    with ThreadPoolExecutor() as threads:
        body = {"model": "model", "prompt": "a" * 50, "max_tokens": 1}
        create: Any = stale.client().completions.create
        asked = [threads.submit(create, **body) for _ in range(2)]
        assert soon(lambda: len(stale.llm.requests) == before + 2)
        while not all(one.done() for one in asked):
            began = time.monotonic()
            assert health(stale)[0] == 200
            assert time.monotonic() - began < SECONDS / 10


def test_silence_is_judged_by_the_longest_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(pulse, "time", clock)
    beats = pulse.Pulse()
    beats.work()

    def is_silent_at(seconds: float) -> bool:
        clock.now = seconds
        return beats.is_silent

    assert not is_silent_at(29) and is_silent_at(31)
    clock.now = 100.0
    beats.beat()  # a machine so slow that one chunk takes that long
    assert not is_silent_at(1099) and is_silent_at(1101)
    beats.rest()
    assert not beats.is_silent


def test_runtime_that_fails_is_unhealthy_once_no_output_is_fresh(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "FRESH_SECONDS", 2 * SECONDS)
    assert health(served)[0] == 200
    monkeypatch.setattr(served.llm.executor, "take", lambda *given: 1 / 0)
    assert health(served)[0] == 200
    monkeypatch.setattr(health_module, "FRESH_SECONDS", 0)
    status, body = health(served)
    assert status == 503 and body["error"]["code"] == FAILED
    assert "ZeroDivisionError" in body["error"]["message"]


def test_full_queue_is_healthy(stale: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Failure("67 requests are running or waiting already", "full")
    monkeypatch.setattr(stale.model.streams.worker, "accept", lambda stream: full)
    assert health(stale)[0] == 200


@pytest.mark.anyio
async def test_worker_that_has_ended_ends_the_command(stale: Served) -> None:
    streams = started(make_llm()).streams
    await streams.close()
    with pytest.raises(UserError, match="the model's thread has ended"):
        await asyncio.wait_for(Health(streams).supervise(), SECONDS)


@pytest.mark.anyio
async def test_idle_worker_is_not_probed_until_it_fails(
    stale: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm()
    streams = started(llm).streams
    task = asyncio.ensure_future(Health(streams).supervise())
    await asyncio.sleep(0.1)
    assert llm.requests == []
    with monkeypatch.context() as patch:
        patch.setattr(LLM, "step", lambda self: 1 / 0)
        with pytest.raises(Exception, match="ZeroDivisionError"):
            await anext(streams.stream(llm.read([1])))
        with pytest.raises(UserError, match="the model no longer answers"):
            await asyncio.wait_for(task, SECONDS)
    await streams.close()
