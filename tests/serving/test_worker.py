"""The worker over the fake executor: accepted, refused, cancelled and failing requests."""

import queue
import time
from typing import Any

import pytest

from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import OutputDelta, SamplingParams
from snapexport.serving.model import run_every_decode, warm_up
from snapexport.serving.worker import CANCELLED, STOPPING, ActiveRequest, Event, Failure, Worker
from tests.patience import until
from tests.runtime.requests.fake_executor import FakeExecutor, make_limits
from tests.serving.process import SECONDS

SLOTS, PENDING = 3, 2


class Bench:
    """A worker and the queue of its events; `start` it when the requests are there."""

    def __init__(self) -> None:
        self.engine = FakeExecutor(make_limits(batch=SLOTS))
        self.llm = LLM.from_executor(self.engine)
        self.logged: list[str] = []
        self.events: queue.Queue[list[tuple[ActiveRequest, Event]]] = queue.Queue(32)
        self.observed: list[tuple[str, float]] = []
        self.worker: Worker[ActiveRequest] = Worker(
            self.llm,
            self.events.put,
            PENDING,
            self.logged.append,
            lambda *seen: self.observed.append(seen),
        )
        self.counters = self.worker.counters

    def request(self, length: int = 5, max_tokens: int = 5, timeout: float = 0) -> ActiveRequest:
        params = SamplingParams(max_tokens=max_tokens)
        return ActiveRequest(request=self.llm.read([length] * length, params), timeout=timeout)

    def events_of(self, active: ActiveRequest) -> list[Event]:
        """All events of one request, until its last; those of others are dropped."""
        events: list[Event] = []
        while not (events and _is_last(events[-1])):
            events += [event for of, event in self.events.get(timeout=SECONDS) if of is active]
        return events


@pytest.fixture
def bench() -> Any:
    one = Bench()
    yield one
    one.worker.stop(SECONDS)


def _is_last(one: Event) -> bool:
    return isinstance(one, Failure) or one.finish_reason is not None


def ids(events: list[Event]) -> tuple[int, ...]:
    return tuple(i for one in events if isinstance(one, OutputDelta) for i in one.token_ids)


def alone(length: int, max_tokens: int) -> tuple[int, ...]:
    llm = LLM.from_executor(FakeExecutor(make_limits(batch=SLOTS)))
    (completion,) = llm.generate([length] * length, SamplingParams(max_tokens=max_tokens))
    return completion.token_ids


def test_each_token_is_an_event(bench: Bench) -> None:
    bench.worker.start()
    for _ in range(2):
        active = bench.request(6, 7)
        assert bench.worker.accept(active) is None
        events = bench.events_of(active)
        assert len(events) == 7 and ids(events) == alone(6, 7)
    counters = bench.counters
    assert counters["requests_finished_total"] == 2
    assert (counters["prompt_tokens_total"], counters["generated_tokens_total"]) == (12, 14)
    assert sorted(name for name, _ in bench.observed) == sorted(
        2 * ["queue_seconds", "time_to_first_token_seconds", "time_per_output_token_seconds"]
    )


def test_time_of_prefill_is_not_of_the_queue(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    step, active = bench.llm.step, bench.request(6, 1)
    monkeypatch.setattr(bench.llm, "step", lambda: time.sleep(0.2) or step())
    bench.worker.start()
    assert bench.worker.accept(active) is None
    bench.events_of(active)
    seconds = dict(bench.observed)
    assert seconds["time_to_first_token_seconds"] - seconds["queue_seconds"] >= 0.2


def test_requests_over_slots_and_max_pending_are_refused(bench: Bench) -> None:
    requests = [bench.request(max_tokens=4) for _ in range(SLOTS + PENDING + 1)]
    *accepted, refused = [bench.worker.accept(active) for active in requests]
    assert accepted == [None] * (SLOTS + PENDING)
    assert refused is not None and refused.code == "full"
    bench.worker.start()
    bench.events_of(requests[-2])
    until(lambda: bench.worker.values()["slots_used"] == 0)
    assert bench.worker.accept(bench.request()) is None


def test_cancelled_requests_end_and_leave_their_places(bench: Bench) -> None:
    first, *others = [bench.request(max_tokens=900) for _ in range(SLOTS + 1)]
    for active in (first, *others):
        bench.worker.accept(active)
    bench.worker.cancel(others[-1], CANCELLED)
    bench.worker.start()
    assert bench.events_of(others[-1]) == [CANCELLED]
    bench.worker.cancel(first, CANCELLED)
    assert bench.events_of(first)[-1] == CANCELLED
    bench.worker.cancel(first, CANCELLED)
    for active in others[:-1]:
        bench.worker.cancel(active, CANCELLED)
        bench.events_of(active)
    assert bench.counters["requests_cancelled_total"] == SLOTS + 1
    values = bench.worker.values()
    assert values["requests_running"] == values["requests_waiting"] == 0


def test_timeout_ends_a_request(bench: Bench) -> None:
    late, other = bench.request(max_tokens=900, timeout=0.01), bench.request(7, max_tokens=6)
    time.sleep(0.02)
    bench.worker.accept(late)
    bench.worker.accept(other)
    bench.worker.start()
    (failure,) = bench.events_of(late)
    assert isinstance(failure, Failure) and failure.code == "deadline"
    assert failure.message == "deadline exceeded: the answer took longer than 0.01 s"


def test_exception_of_the_executor_fails_its_own_request(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FakeExecutor.take

    def faulty(self: FakeExecutor, slot: int, ids: Any, piece: Any, heat: float) -> Any:
        if piece.end == 13:
            raise RuntimeError("planted")
        return real(self, slot, ids, piece, heat)

    monkeypatch.setattr(FakeExecutor, "take", faulty)
    hit, spared = bench.request(13), bench.request(6, 30)
    bench.worker.accept(spared)
    bench.worker.accept(hit)
    bench.worker.start()
    assert ids(bench.events_of(spared)) == alone(6, 30)
    bench.worker.accept(again := bench.request(13))
    assert bench.events_of(again) == [
        Failure("the runtime failed: RuntimeError: planted", "internal")
    ]
    assert bench.counters["requests_failed_total"] == 2 and not bench.logged


def test_unexpected_error_ends_all_requests_and_the_worker_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LLM, "step", lambda self: 1 / 0)
        bench.worker.accept(active := bench.request(max_tokens=900))
        bench.worker.start()
        (events,) = bench.events_of(active)
        assert isinstance(events, Failure) and "ZeroDivisionError" in events.message
    assert "division by zero" in bench.logged[0]
    bench.worker.accept(after := bench.request(6, 5))
    assert ids(bench.events_of(after)) == alone(6, 5)
    until(lambda: bench.worker.values()["slots_used"] == 0)


def test_request_that_cannot_be_submitted_fails_by_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LLM.submit

    def faulty(self: LLM, prompt: Any, params: Any = None) -> int:
        if len(prompt.prompt_token_ids) == 13:
            raise RuntimeError("planted")
        return real(self, prompt, params)

    monkeypatch.setattr(LLM, "submit", faulty)
    requests = [bench.request(6, 5), bench.request(13), bench.request(7, 5)]
    for active in requests:
        bench.worker.accept(active)
    bench.worker.start()
    events: dict[ActiveRequest, list[Event]] = {active: [] for active in requests}
    while not all(those and _is_last(those[-1]) for those in events.values()):
        for active, one in bench.events.get(timeout=SECONDS):
            events[active].append(one)
    assert [ids(events[requests[0]]), ids(events[requests[2]])] == [alone(6, 5), alone(7, 5)]
    assert events[requests[1]] == [Failure("the runtime failed: RuntimeError: planted", "internal")]
    until(lambda: bench.worker._accepted == 0)


def test_failing_cancellation_does_not_end_the_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LLM, "step", lambda self: 1 / 0)
        patch.setattr(LLM, "cancel", lambda self, request_id: 1 / 0)
        bench.worker.accept(active := bench.request(max_tokens=900))
        bench.worker.start()
        (events,) = bench.events_of(active)
        assert isinstance(events, Failure) and "ZeroDivisionError" in events.message
    bench.worker.accept(after := bench.request(6, 5))
    assert ids(bench.events_of(after)) == alone(6, 5)


def test_stop_ends_all_requests_and_refuses_new_ones(bench: Bench) -> None:
    requests = [bench.request(max_tokens=900) for _ in range(SLOTS + 1)]
    for active in requests:
        bench.worker.accept(active)
    bench.worker.stop(0)
    bench.worker.start()
    bench.worker.stop(SECONDS)
    events = bench.events.get(timeout=SECONDS)
    assert events == [(active, STOPPING) for active in requests]
    assert bench.worker.accept(bench.request()) == STOPPING


def test_warm_up_runs_the_graphs_of_several_tokens_too() -> None:
    executor = FakeExecutor(make_limits(batch=4, decode_batches=(1, 4), step_tokens=3))
    run_every_decode(LLM.from_executor(executor))
    assert executor.steps.count("several") == 2


def test_warm_up_runs_every_decode_graph_and_a_prompt() -> None:
    executor = FakeExecutor(make_limits(batch=8, decode_batches=(1, 4, 8)))
    llm = LLM.from_executor(executor)
    run_every_decode(llm)
    assert executor.counts == [1, 4, 8]
    warm_up(llm)
    assert executor.steps.count("prefill") == 2 and not llm.busy
