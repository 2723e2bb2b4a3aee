"""Full slots, full queues, clients that leave, and deadlines."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from snapexport.serving.options import RepositoryOptions
from snapexport.serving.triton.repository import write_repository
from tests.serving.triton.client import IDLE, Client, HttpError, Stream
from tests.serving.triton.server import Server

SLOTS = 8
MAX_PENDING = 2
LONG = {"text_input": "The vault", "max_tokens": 2200, "ignore_eos": True}
SHORT = {"text_input": "The vault", "max_tokens": 3}
STEP_SECONDS = 0.02
"""Time of a real model's step. The bundled model's step is too short to be measured reliably."""
STEPS_TO_NOTICE = 10
"""Clients are polled every half a step here. Then the waiting request needs its prefill."""

SLOW_MODEL = f"""
import time

from snapexport.serving.triton.models import StreamingModel


class TritonPythonModel(StreamingModel):
    def load(self, *given):
        model = super().load(*given)
        decode = model.llm.executor.decode

        def slow_decode(*inputs):
            time.sleep({STEP_SECONDS})
            return decode(*inputs)

        model.llm.executor.decode = slow_decode
        return model
"""


@pytest.fixture(scope="module")
def short_queue_client(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server whose queue is short, and whose steps are long."""
    out = tmp_path_factory.mktemp("small") / "repository"
    write_repository(
        RepositoryOptions(build, out, name="small", threads=1, max_pending=MAX_PENDING)
    )
    (out / "small/1/model.py").write_text(SLOW_MODEL)
    with Server(out) as running:
        yield Client(running, "small")


def started(client: Client, stack: ExitStack, count: int) -> list[Stream]:
    """`count` long streams, each with its first output."""
    streams = [stack.enter_context(client.stream(**LONG)) for _ in range(count)]
    for stream in streams:
        stream.next()
    return streams


def test_full_queue_refuses_at_once_and_later_accepts_again(short_queue_client: Client) -> None:
    short_queue_client.settled(**IDLE)
    with ExitStack() as stack:
        started(short_queue_client, stack, SLOTS)
        waiting = [
            stack.enter_context(short_queue_client.stream(**LONG)) for _ in range(MAX_PENDING)
        ]
        short_queue_client.settled(
            requests_running=SLOTS, requests_waiting=MAX_PENDING, slots_used=SLOTS
        )
        refused = short_queue_client.metrics()["requests_refused_total"]
        with (
            short_queue_client.stream(**SHORT) as one,
            pytest.raises(InferenceServerException) as no,
        ):
            one.next()
        assert "try again later" in str(no.value)
        with pytest.raises(HttpError, match="UNAVAILABLE: 10 requests"):
            short_queue_client.generate(**SHORT, error_code_in_message=True)
        with pytest.raises(InferenceServerException) as no_unary:
            short_queue_client.infer_grpc(**SHORT)
        assert no_unary.value.status() == "StatusCode.UNAVAILABLE"
        short_queue_client.settled(requests_refused_total=refused + 3)
        assert len(waiting) == MAX_PENDING
    short_queue_client.settled(**IDLE)
    assert short_queue_client.generate(**SHORT).reason == "length"


def test_cancelled_stream_frees_its_batch_slot_for_the_next_request(
    short_queue_client: Client,
) -> None:
    short_queue_client.settled(**IDLE)
    with ExitStack() as stack:
        leaves, stays, *_ = started(short_queue_client, stack, SLOTS)
        waits = stack.enter_context(short_queue_client.stream(**SHORT))
        short_queue_client.settled(requests_waiting=1)
        stays.come()
        leaves.cancel()
        waits.next()
        steps = sum(len(reply.token_ids) for reply in stays.come())
        assert 0 < steps < STEPS_TO_NOTICE
    short_queue_client.settled(**IDLE)


def test_http_disconnect_frees_the_batch_slot(short_queue_client: Client) -> None:
    before = short_queue_client.quiet()["requests_cancelled_total"]
    replies = short_queue_client.generate_stream(**LONG)
    next(replies)
    replies.close()  # type: ignore[attr-defined]
    after = short_queue_client.settled(**IDLE, requests_cancelled_total=before + 1)
    assert after["generated_tokens_total"] > 0


def test_non_streaming_request_can_be_cancelled(short_queue_client: Client) -> None:
    before = short_queue_client.quiet()["requests_cancelled_total"]
    with short_queue_client.stream(**LONG | {"stream": False}):
        short_queue_client.settled(requests_running=1)
    short_queue_client.settled(**IDLE, requests_cancelled_total=before + 1)


def test_deadline_ends_a_running_request(short_queue_client: Client) -> None:
    short_queue_client.settled(**IDLE)
    with short_queue_client.stream(timeout_us=300_000, **LONG) as stream:
        began = time.monotonic()
        with pytest.raises(InferenceServerException, match="deadline exceeded"):
            list(stream)
    assert time.monotonic() - began > 0.2
    with pytest.raises(HttpError, match="CANCELLED: deadline exceeded"):
        short_queue_client.generate(**LONG, timeout=100_000, error_code_in_message=True)
    short_queue_client.settled(**IDLE)


def test_deadline_ends_a_waiting_request(short_queue_client: Client) -> None:
    short_queue_client.settled(**IDLE)
    with ExitStack() as stack:
        started(short_queue_client, stack, SLOTS)
        late = stack.enter_context(short_queue_client.stream(timeout_us=200_000, **SHORT))
        with pytest.raises(InferenceServerException, match="deadline exceeded"):
            late.next()
        short_queue_client.settled(requests_waiting=0, requests_running=SLOTS)
    short_queue_client.settled(**IDLE)


def test_request_within_its_deadline_finishes(short_queue_client: Client) -> None:
    with short_queue_client.stream(timeout_us=60_000_000, **SHORT) as stream:
        assert [reply.reason for reply in stream][-1] == "length"
