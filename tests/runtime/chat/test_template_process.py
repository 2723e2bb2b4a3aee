"""Chat templates in processes of their own: what they make, and how they are ended."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from snapexport.errors import UserError
from snapexport.runtime import confined
from snapexport.runtime.chat.chat_template import ChatTemplate, TemplateProcesses
from tests.patience import PATIENCE

TALK = [{"role": "user", "content": "É \u2028 \n { }"}, {"role": "assistant", "content": "Well"}]
SOURCE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if loops %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    "{% endif %}"
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template's processor time ends it, however long that takes beside other processes."""
    monkeypatch.setattr(confined, "SECONDS", PATIENCE)


@pytest.fixture
def processes() -> Iterator[TemplateProcesses]:
    made = TemplateProcesses(ChatTemplate(SOURCE, {"bos_token": "<s>"}))
    yield made
    made.close()


@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_text_equals_the_templates_own(
    processes: TemplateProcesses, add_generation_prompt: bool
) -> None:
    alone = ChatTemplate(SOURCE, {"bos_token": "<s>"})
    assert processes.render(TALK, add_generation_prompt) == alone.render(
        TALK, add_generation_prompt
    )
    assert processes.options == alone.options == {"loops"}
    assert processes.source == SOURCE


def test_template_that_loops_is_ended_and_others_go_on(
    processes: TemplateProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confined, "SECONDS", 300)  # the clock of a busy machine is no bound
    with processes._pool.worker() as first, processes._pool.worker() as second:
        second.start()
    assert first._child
    with ThreadPoolExecutor(1) as pool:
        looping = pool.submit(processes.render, TALK, True, {"loops": True})
        while processes._pool._free.qsize() == confined.PROCESSES and not looping.done():
            time.sleep(0.001)
        first._child.send_signal(signal.SIGSTOP)  # so that it takes no processor time meanwhile
        assert processes.render(TALK, True).endswith("Well")
        first._child.send_signal(signal.SIGCONT)
        with pytest.raises(UserError, match="more than 2 s of processor time"):
            looping.result()
    assert processes.render(TALK, True).endswith("Well")


def test_template_that_waits_is_ended_by_the_clock(
    processes: TemplateProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confined, "SECONDS", 0.3)
    with pytest.raises(UserError, match=r"more than 0\.3 s"):
        processes.render(TALK, True, {"loops": True})


def test_process_that_was_killed_is_started_again(processes: TemplateProcesses) -> None:
    processes.render(TALK, True)
    with processes._pool.worker() as worker:
        assert worker._child is not None
        worker._child.send_signal(signal.SIGKILL)
        worker._child.wait()
    assert processes.render(TALK, True).endswith("Well")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ 'x' * 10000000000 }}", "MemoryError"),
        ("{{ messages[0].content * 1000000000 }}", "MemoryError"),
        ("{{ 'x' * 20000000 }}", "20000000 characters"),
        ("{{ 9 ** 999999999 }}", "processor time"),
        pytest.param(
            "{{ '%1000000000d' % 1 }}", "MemoryError|processor time", marks=pytest.mark.slow
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}", "RecursionError"),
        ("{{ raise_exception('no') }}", "cannot be applied: no"),
        ("{{ bos_token", "cannot be read"),
    ],
)
def test_template_that_cannot_be_used_is_refused(source: str, says: str) -> None:
    template = ChatTemplate(source, {})
    with pytest.raises(UserError, match=says):
        made = TemplateProcesses(template)
        try:
            made.render([{"role": "user", "content": "a" * 10}], True)
        finally:
            made.close()


def test_worker_knows_no_secret_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNAPEXPORT_API_KEY", "secret")
    assert "secret" not in confined._environment().values()
