"""The sender over fake ports: responses, clients that leave, and ports that fail."""

import queue
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from snapexport.runtime.requests import OutputDelta, Request, SamplingParams
from snapexport.serving.generator import Failure
from snapexport.serving.triton.backend.inputs import Inputs
from snapexport.serving.triton.backend.sender import MOST_STEPS, Sender, TritonRequest, merged

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


class Bench:
    def __init__(self) -> None:
        self.queue: queue.Queue[Any] = queue.Queue()
        self.cancelled: list[TritonRequest] = []
        self.logged: list[str] = []
        self.sender = Sender(
            self.queue, self.cancelled.append, lambda: None, str, self.logged.append
        )


@pytest.fixture
def bench() -> Iterator[Bench]:
    one = Bench()
    yield one
    one.sender.stop(5)


def active(stream: bool = True, echo: str = "") -> tuple[TritonRequest, FakePort]:
    params, port = SamplingParams(), FakePort()
    inputs = Inputs("a", "text_input", params, stream, bool(echo), False, False, 0.0, OUTPUTS)
    request = Request((1,), params)
    return TritonRequest(request=request, inputs=inputs, port=port, echo=echo), port


def output(text: str, reason: Any = None) -> OutputDelta:
    return OutputDelta(0, text, (len(text),), reason)


def eventually(holds: Any) -> None:
    end = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_responses_arrive_in_order_and_the_last_is_final(bench: Bench) -> None:
    (one, port), (other, others_port) = active(), active()
    bench.sender.start()
    bench.queue.put([(one, output("a")), (other, output("x"))])
    eventually(lambda: port.sent)
    bench.queue.put([(one, output("b", "stop")), (other, Failure("no", "internal"))])
    eventually(lambda: others_port.failed)
    assert port.sent == [("a", False), ("b", True)]
    assert (others_port.sent, others_port.failed) == ([("x", False)], [("no", "INTERNAL")])
    assert one.closed and other.closed


def test_non_streaming_answer_is_sent_once_with_its_echo(bench: Bench) -> None:
    one, port = active(stream=False, echo="prompt ")
    bench.sender.start()
    for text, reason in (("a", None), ("b", None), ("c", "length")):
        bench.queue.put([(one, output(text, reason))])
        time.sleep(0.01)
    eventually(lambda: port.sent)
    assert port.sent == [("prompt abc", True)]


def test_waiting_outputs_are_sent_as_one_response(bench: Bench) -> None:
    one, port = active()
    for text in "abc":
        bench.queue.put([(one, output(text))])
    bench.sender.start()
    eventually(lambda: port.sent)
    assert port.sent == [("abc", False)]


def test_sender_sends_a_long_queue_to_its_end(bench: Bench) -> None:
    """More steps than the sender merges at once, then its stop."""
    one, port = active()
    for step in range(MOST_STEPS + 8):
        bench.queue.put([(one, output(chr(ord("A") + step)))])
    bench.sender.start()
    bench.sender.stop(5)
    assert "".join(text for text, _ in port.sent) == "".join(
        chr(ord("A") + step) for step in range(MOST_STEPS + 8)
    )


def test_merging_keeps_each_requests_order_and_its_failure_last() -> None:
    (one, _), (other, _) = active(), active()
    failure = Failure("no", "internal")
    outputs = [(one, output("a")), (other, output("x")), (one, output("b")), (one, failure)]
    both = OutputDelta(0, "ab", (1, 1))
    assert merged(outputs) == [(one, both), (other, output("x")), (one, failure)]


def test_client_that_left_is_reported_once_unless_its_request_has_ended(bench: Bench) -> None:
    (stays, _), (leaves, port), (ended, ended_port) = active(), active(), active()
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


def test_response_that_cannot_be_sent_stops_no_other(bench: Bench) -> None:
    (one, port), (other, others_port) = active(), active()
    port.broken = True
    bench.sender.start()
    bench.queue.put([(one, output("a")), (other, output("x"))])
    eventually(lambda: others_port.sent)
    assert "cannot be sent" in bench.logged[0]


def test_sender_stop_sends_the_remaining_outputs(bench: Bench) -> None:
    one, port = active()
    bench.queue.put([(one, output("a", "length"))])
    bench.sender.start()
    bench.sender.stop(5)
    assert port.sent == [("a", True)]
