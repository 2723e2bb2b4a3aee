"""A stream's status and headers do not wait for a long prompt, and comments fill its silence."""

import json
from http.client import HTTPConnection, HTTPResponse

import openai
import pytest

from snapexport.serving.openai.writers import stream as streaming
from tests.serving.openai.conftest import Served, soon
from tests.serving.process import SECONDS

BODY = {"model": "model", "prompt": "a" * 90, "max_tokens": 3, "stream": True, "temperature": 0}


@pytest.fixture
def slow_prompt(served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Steps take longer than the status of a stream waits."""
    monkeypatch.setattr(streaming, "STATUS_SECONDS", 0.01)
    monkeypatch.setattr(streaming, "COMMENT_SECONDS", 0.05)
    served.llm.seconds = 0.2
    return served


def opened(served: Served) -> tuple[HTTPConnection, HTTPResponse]:
    connection = HTTPConnection(served.url.removeprefix("http://"), timeout=SECONDS)
    connection.request(
        "POST", "/v1/completions", json.dumps(BODY), {"Content-Type": "application/json"}
    )
    return connection, connection.getresponse()


def test_headers_come_before_the_prompt_is_read(slow_prompt: Served) -> None:
    slow_prompt.llm.stands_still = True
    connection, answer = opened(slow_prompt)
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
    lines = [answer.readline() for _ in range(2)]
    assert lines == [b": prefill 0/90\n", b"\n"]
    slow_prompt.llm.stands_still, slow_prompt.llm.seconds = False, 0
    assert answer.read().endswith(b"data: [DONE]\n\n")
    connection.close()


def test_comments_say_how_far_the_prompt_is_and_clients_ignore_them(slow_prompt: Served) -> None:
    connection, answer = opened(slow_prompt)
    read = [0]
    while not read[-1]:
        line = answer.readline()
        assert line, "the stream ended before a comment said that the prompt goes on"
        if line.startswith(b": prefill "):
            read.append(int(line.removeprefix(b": prefill ").split(b"/")[0]))
    assert read == sorted(read) and read[-1] <= 90
    slow_prompt.llm.seconds = 0
    assert answer.read().endswith(b"data: [DONE]\n\n")
    connection.close()
    stream = slow_prompt.client().completions.create(**BODY)
    assert sum(len(chunk.choices[0].text) for chunk in stream)


def test_client_that_leaves_during_prefill_frees_its_slot(slow_prompt: Served) -> None:
    slow_prompt.llm.stands_still = True
    connection, answer = opened(slow_prompt)
    answer.readline()
    assert soon(lambda: slow_prompt.api.gate.inside == 1)
    answer.close()
    connection.close()
    slow_prompt.llm.stands_still = False
    assert soon(lambda: slow_prompt.api.gate.inside == 0)
    assert soon(lambda: slow_prompt.llm.slots_used == 0)


def test_error_after_the_headers_is_the_last_event(
    slow_prompt: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_prompt.model.streams, "request_seconds", 0.05)
    with pytest.raises(openai.APIError, match="deadline exceeded"):
        list(slow_prompt.client().completions.create(**BODY))
