"""Health: what counts as a sign of life, what does not, and when the command gives up."""

import asyncio
import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
from snapexport.serving.openai.http import health as health_module
from snapexport.serving.openai.http.health import FAILED, SILENT, Health
from snapexport.serving.worker import Failure
from tests.serving.openai.conftest import Served, started
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


def test_model_that_does_not_answer_is_unhealthy(
    stale: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stale.api.health, "_patience", 0.1)
    stale.llm.stands_still = True
    status, body = health(stale)
    assert status == 503 and "no token came within 0.1 s" in body["error"]["message"]


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


def test_slow_answer_is_silence_and_not_failure(
    stale: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a server with long prompts would be taken for a broken one."""
    stale.llm.seconds, stale.llm.stands_still = 0.01, True
    monkeypatch.setattr(stale.api.health, "_patience", 0.1)
    assert health(stale)[1]["error"]["code"] == SILENT


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
