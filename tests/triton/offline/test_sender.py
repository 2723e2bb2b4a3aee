"""The sender with ports of its own: what goes out, who is asked after, and what stops it not."""

import queue
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from snapexport.runtime.requests import Request, SamplingParams
from snapexport.serving.triton.backend.job import Answer, Failure, Job
from snapexport.serving.triton.backend.question import Question
from snapexport.serving.triton.backend.sender import MOST_STEPS, Sender, merged

WANTED = frozenset({"text_output", "finish_reason", "output_ids"})


class FakePort:
    """Keeps what is sent; `gone` and `broken` are the client's doing."""

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


class Bench:
    def __init__(self) -> None:
        self.queue: queue.Queue[Any] = queue.Queue()
        self.cancelled: list[Job] = []
        self.logged: list[str] = []
        self.sender = Sender(
            self.queue, self.cancelled.append, lambda: None, str, self.logged.append
        )


@pytest.fixture
def bench() -> Iterator[Bench]:
    one = Bench()
    yield one
    one.sender.stop(5)


def job() -> tuple[Job, FakePort]:
    params, port = SamplingParams(), FakePort()
    question = Question("a", "text_input", params, True, False, False, False, 0.0)
    return Job(question, Request((1,), params), port, WANTED, time.monotonic(), None), port


def answer(text: str, reason: Any = None) -> Answer:
    return Answer(text, (len(text),), (), reason, False)


def eventually(holds: Any) -> None:
    end = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_answers_arrive_in_order_and_the_last_is_marked(bench: Bench) -> None:
    (one, port), (other, others_port) = job(), job()
    bench.sender.start()
    bench.queue.put([(one, answer("a")), (other, answer("x"))])
    eventually(lambda: port.sent)
    bench.queue.put([(one, answer("b", "stop")), (other, Failure("no", "INTERNAL"))])
    eventually(lambda: others_port.failed)
    assert port.sent == [("a", False), ("b", True)]
    assert (others_port.sent, others_port.failed) == ([("x", False)], [("no", "INTERNAL")])
    assert one.closed and other.closed


def test_what_has_gathered_goes_out_as_one(bench: Bench) -> None:
    one, port = job()
    for text in "abc":
        bench.queue.put([(one, answer(text))])
    bench.sender.start()
    eventually(lambda: port.sent)
    assert port.sent == [("abc", False)]


def test_nothing_of_a_long_queue_is_lost_nor_its_end(bench: Bench) -> None:
    """More steps than are heard at once, and the end right behind them."""
    one, port = job()
    for step in range(MOST_STEPS + 8):
        bench.queue.put([(one, answer(chr(ord("A") + step)))])
    bench.sender.start()
    bench.sender.stop(5)
    assert "".join(text for text, _ in port.sent) == "".join(
        chr(ord("A") + step) for step in range(MOST_STEPS + 8)
    )


def test_merging_keeps_each_job_s_order_and_its_failure_last() -> None:
    (one, _), (other, _) = job(), job()
    failure = Failure("no", "INTERNAL")
    said = [(one, answer("a")), (other, answer("x")), (one, answer("b")), (one, failure)]
    both = Answer("ab", (1, 1), (), None, False)
    assert merged(said) == [(one, both), (other, answer("x")), (one, failure)]


def test_a_client_that_has_gone_is_told_of_until_its_job_ends(bench: Bench) -> None:
    (stays, _), (leaves, port), (ended, ended_port) = job(), job(), job()
    ended.closed = ended_port.gone = True
    for one in (stays, leaves, ended):
        bench.sender.watch(one)
    bench.sender.start()
    time.sleep(0.15)
    assert bench.cancelled == []
    port.gone = True
    eventually(lambda: bench.cancelled)
    time.sleep(0.15)
    assert bench.cancelled == [leaves]


def test_a_response_that_cannot_be_sent_stops_nobody_else(bench: Bench) -> None:
    (one, port), (other, others_port) = job(), job()
    port.broken = True
    bench.sender.start()
    bench.queue.put([(one, answer("a")), (other, answer("x"))])
    eventually(lambda: others_port.sent)
    assert "cannot be sent" in bench.logged[0]


def test_what_is_left_goes_out_before_the_end(bench: Bench) -> None:
    one, port = job()
    bench.queue.put([(one, answer("a", "length"))])
    bench.sender.start()
    bench.sender.stop(5)
    assert port.sent == [("a", True)]
