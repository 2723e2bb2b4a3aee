"""The worker over an engine without a model: who is accepted, served, dropped, and told why."""

import queue
import time
from collections.abc import Callable
from typing import Any

import pytest

from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import SamplingParams
from snapexport.serving.triton.backend.job import Answer, Failure, Job
from snapexport.serving.triton.backend.question import Question
from snapexport.serving.triton.backend.tally import Tally
from snapexport.serving.triton.backend.worker import CANCELLED, DEADLINE, STOPPING, Said, Worker
from tests.runtime.fake_executor import FakeExecutor, make_limits

SLOTS, PENDING = 3, 2


class Bench:
    """A worker and its queue; `start` it when the jobs are there."""

    def __init__(self) -> None:
        self.engine = FakeExecutor(make_limits(batch=SLOTS))
        self.llm = LLM.from_executor(self.engine)
        self.tally = Tally()
        self.logged: list[str] = []
        self.said: queue.Queue[Said | None] = queue.Queue(32)
        self.worker = Worker(self.llm, self.said, self.tally, PENDING, self.logged.append)

    def job(
        self, length: int = 5, max_tokens: int = 5, stream: bool = True, timeout: float = 0
    ) -> Job:
        params = SamplingParams(max_tokens=max_tokens)
        prompt = [length] * length
        question = Question(prompt, "input_ids", params, stream, False, False, False, timeout)
        now = time.monotonic()
        deadline = now + timeout if timeout else None
        port: Any = None
        return Job(question, self.llm.read(prompt, params), port, frozenset(), now, deadline)

    def told(self, job: Job) -> list[Answer | Failure]:
        """All that is told of one job, until its end; others are dropped."""
        heard: list[Answer | Failure] = []
        while not (heard and _is_last(heard[-1])):
            said = self.said.get(timeout=5)
            assert said is not None
            heard += [one for of, one in said if of is job]
        return heard


@pytest.fixture
def bench() -> Any:
    one = Bench()
    yield one
    one.worker.stop(5)


def _is_last(one: Answer | Failure) -> bool:
    return isinstance(one, Failure) or one.finish_reason is not None


def ids(told: list[Answer | Failure]) -> tuple[int, ...]:
    return tuple(i for one in told if isinstance(one, Answer) for i in one.token_ids)


def alone(length: int, max_tokens: int) -> tuple[int, ...]:
    llm = LLM.from_executor(FakeExecutor(make_limits(batch=SLOTS)))
    (completion,) = llm.generate([length] * length, SamplingParams(max_tokens=max_tokens))
    return completion.token_ids


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_stream_is_told_token_by_token_and_an_answer_at_its_end(bench: Bench) -> None:
    bench.worker.start()
    for stream, responses in ((True, 7), (False, 1)):
        job = bench.job(6, 7, stream)
        assert bench.worker.accept(job) is None
        told = bench.told(job)
        assert len(told) == responses and ids(told) == alone(6, 7)
        assert [one.is_first for one in told if isinstance(one, Answer)][:2] in (
            [True, False],
            [True],
        )
    tally = bench.tally
    assert (tally.finished, tally.prompt_tokens, tally.generated_tokens) == (2, 12, 14)


def test_the_room_is_the_slots_and_the_queue(bench: Bench) -> None:
    jobs = [bench.job(max_tokens=4) for _ in range(SLOTS + PENDING + 1)]
    *accepted, refused = [bench.worker.accept(job) for job in jobs]
    assert accepted == [None] * (SLOTS + PENDING)
    assert refused is not None and refused.code == "UNAVAILABLE"
    bench.worker.start()
    bench.told(jobs[-2])
    eventually(lambda: bench.worker.load().slots_used == 0)
    assert bench.worker.accept(bench.job()) is None


def test_a_cancelled_job_hears_of_it_and_leaves_its_place(bench: Bench) -> None:
    first, *others = [bench.job(max_tokens=900) for _ in range(SLOTS + 1)]
    for job in (first, *others):
        bench.worker.accept(job)
    bench.worker.cancel(others[-1], CANCELLED)
    bench.worker.start()
    assert bench.told(others[-1]) == [CANCELLED]
    bench.worker.cancel(first, CANCELLED)
    assert bench.told(first)[-1] == CANCELLED
    bench.worker.cancel(first, CANCELLED)
    for job in others[:-1]:
        bench.worker.cancel(job, CANCELLED)
        bench.told(job)
    assert bench.tally.cancelled == SLOTS + 1
    assert bench.worker.load().running == bench.worker.load().waiting == 0


def test_a_deadline_that_passes_ends_a_job(bench: Bench) -> None:
    late, other = bench.job(max_tokens=900, timeout=0.01), bench.job(7, max_tokens=6)
    time.sleep(0.02)
    bench.worker.accept(late)
    bench.worker.accept(other)
    bench.worker.start()
    assert bench.told(late) == [DEADLINE]


def test_an_exception_of_the_engine_is_told_to_whom_it_hit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FakeExecutor.prefill

    def faulty(self: FakeExecutor, slot: int, ids: Any, past: int, length: int, heat: float) -> Any:
        if length == 13:
            raise RuntimeError("planted")
        return real(self, slot, ids, past, length, heat)

    monkeypatch.setattr(FakeExecutor, "prefill", faulty)
    hit, spared = bench.job(13), bench.job(6, 30)
    bench.worker.accept(spared)
    bench.worker.accept(hit)
    bench.worker.start()
    assert ids(bench.told(spared)) == alone(6, 30)
    bench.worker.accept(again := bench.job(13))
    assert bench.told(again) == [Failure("the engine failed: RuntimeError: planted", "INTERNAL")]
    assert bench.tally.failed == 2 and not bench.logged


def test_an_error_of_our_own_leaves_nobody_without_a_last_word(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LLM, "step", lambda self: 1 / 0)
        bench.worker.accept(job := bench.job(max_tokens=900))
        bench.worker.start()
        (told,) = bench.told(job)
        assert isinstance(told, Failure) and "ZeroDivisionError" in told.message
    assert "division by zero" in bench.logged[0]
    bench.worker.accept(after := bench.job(6, 5))
    assert ids(bench.told(after)) == alone(6, 5)
    eventually(lambda: bench.worker.load().slots_used == 0)


def test_a_job_that_cannot_be_submitted_takes_no_other_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LLM.submit

    def faulty(self: LLM, prompt: Any, params: Any = None) -> int:
        if len(prompt.prompt_token_ids) == 13:
            raise RuntimeError("planted")
        return real(self, prompt, params)

    monkeypatch.setattr(LLM, "submit", faulty)
    jobs = [bench.job(6, 5), bench.job(13), bench.job(7, 5)]
    for job in jobs:
        bench.worker.accept(job)
    bench.worker.start()
    told: dict[Job, list[Answer | Failure]] = {job: [] for job in jobs}
    while not all(heard and _is_last(heard[-1]) for heard in told.values()):
        for job, one in bench.said.get(timeout=5) or ():
            told[job].append(one)
    assert [ids(told[jobs[0]]), ids(told[jobs[2]])] == [alone(6, 5), alone(7, 5)]
    assert told[jobs[1]] == [Failure("the engine failed: RuntimeError: planted", "INTERNAL")]
    eventually(lambda: bench.worker._accepted == 0)


def test_a_failing_cancellation_does_not_end_the_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LLM, "step", lambda self: 1 / 0)
        patch.setattr(LLM, "cancel", lambda self, request_id: 1 / 0)
        bench.worker.accept(job := bench.job(max_tokens=900))
        bench.worker.start()
        (told,) = bench.told(job)
        assert isinstance(told, Failure) and "ZeroDivisionError" in told.message
    bench.worker.accept(after := bench.job(6, 5))
    assert ids(bench.told(after)) == alone(6, 5)


def test_stopping_tells_all_and_takes_no_more(bench: Bench) -> None:
    jobs = [bench.job(max_tokens=900) for _ in range(SLOTS + 1)]
    for job in jobs:
        bench.worker.accept(job)
    bench.worker.stop(0)
    bench.worker.start()
    bench.worker.stop(5)
    said = bench.said.get(timeout=5)
    assert said == [(job, STOPPING) for job in jobs]
    assert bench.worker.accept(bench.job()) == STOPPING
