"""The scheduler's invariants, under any order of arrivals, ends and cancels."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapexport.contract.pieces import Piece, Prefill, pieces
from snapexport.errors import UserError
from snapexport.methods.pseudo.spec import PseudoTokens
from snapexport.runtime.engine.bound_graph import Prediction
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests.scheduler import Schedule, Scheduler, Work
from tests.runtime.requests.fake_executor import FakeExecutor, make_limits


@dataclass(frozen=True)
class Job:
    """extended_every: tokens after which it pauses for blocks."""

    arrives: int
    prompt_length: int
    tokens: int
    cancelled_at: int | None
    onto_row: bool = False
    extended_every: int | None = None
    pseudo_tokens: int = 0


@dataclass(frozen=True)
class Config:
    batch: int
    chunk: int
    most: int | None
    decode_batches: tuple[int, ...]


@st.composite
def configs(draw: st.DrawFn) -> Config:
    batch, chunk = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    spare = draw(st.none() | st.integers(1, 30))
    smaller = draw(st.sets(st.integers(1, batch)))
    most = None if spare is None else batch + spare
    return Config(batch, chunk, most, (*sorted(smaller - {batch}), batch))


jobs = st.lists(
    st.builds(
        Job,
        arrives=st.integers(0, 40),
        prompt_length=st.integers(1, 40),
        tokens=st.integers(1, 12),
        cancelled_at=st.none() | st.integers(0, 80),
        onto_row=st.booleans(),
        extended_every=st.none() | st.integers(1, 12),
        pseudo_tokens=st.sampled_from([0, 0, 9]),
    ),
    max_size=12,
)


def work_of(
    length: int, chunk: int, *, onto_row: bool = False, pseudo_tokens: int = 0, done: int = 0
) -> tuple[Piece, ...]:
    """Of a prompt of any length, in chunks or in blocks."""
    further = (PseudoTokens(pseudo_tokens, 0),) if pseudo_tokens else ()
    return pieces(length, done, Prefill((chunk,), length, further=further), onto_row=onto_row)


def expected_chunks(length: int, chunk: int, onto_row: bool) -> list[tuple[int, int]]:
    if onto_row:
        return expected_blocks(0, length, chunk)
    if length <= chunk:
        return [(0, length)]
    whole = [(start, start + chunk) for start in range(0, length - chunk, chunk)]
    return [*whole, (length - chunk, length)]


def expected_blocks(start: int, end: int, chunk: int) -> list[tuple[int, int]]:
    """As few as possible, equally long up to one token, the longer ones first."""
    count = -(-(end - start) // chunk)
    size, longer = divmod(end - start, count)
    ends = [start + size * (i + 1) + min(i + 1, longer) for i in range(count)]
    return list(zip([start, *ends], ends, strict=False))


class Simulation:
    """Drives a scheduler as a loop would, and checks every schedule against the invariants."""

    def __init__(self, config: Config, jobs: list[Job]) -> None:
        self.config = config
        self.jobs = jobs
        self.scheduler = Scheduler(config.batch, config.chunk, config.most, config.decode_batches)
        self.remaining = {i: job.tokens for i, job in enumerate(jobs)}
        self.slots: dict[int, int] = {}
        self.running: set[int] = set()
        self.held = {i: job.prompt_length for i, job in enumerate(jobs)}
        """Tokens that each was, or is being, compressed from."""
        self.fresh = dict.fromkeys(self.remaining, 0)
        self.paused: dict[int, list[tuple[int, int]]] = {}
        """The blocks that are left to each paused request."""
        self.on_row: int | None = None
        """Whose blocks have begun and not ended."""
        self.chunks: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.started: list[int] = []
        self.last_chunk = -1
        self.added: list[int] = []

    def run(self) -> None:
        time = 0
        last_arrival = max((job.arrives for job in self.jobs), default=0)
        while time <= last_arrival or self.scheduler.busy:
            self.arrive_and_cancel(time)
            self.extend()
            self.carry_out(self.scheduler.schedule())
            time += 1
            assert time < 5000, "some request never ends"
        assert not self.slots and not self.remaining

    def arrive_and_cancel(self, time: int) -> None:
        for i, job in enumerate(self.jobs):
            if job.arrives == time:
                self.added.append(i)
                work = work_of(
                    job.prompt_length,
                    self.config.chunk,
                    onto_row=job.onto_row,
                    pseudo_tokens=job.pseudo_tokens,
                )
                self.scheduler.add(i, work)
        for i in [i for i in self.added if self.jobs[i].cancelled_at == time]:
            if i in self.remaining:
                self.end(i)

    def extend(self) -> None:
        for i in [i for i in self.running if self.fresh[i] == self.jobs[i].extended_every]:
            done, self.held[i] = self.held[i], self.held[i] + self.fresh[i]
            self.fresh[i] = 0
            self.running.remove(i)
            self.paused[i] = expected_blocks(done, self.held[i], self.config.chunk)
            work = work_of(self.held[i], self.config.chunk, onto_row=True, done=done)
            self.scheduler.extend(i, work)

    def carry_out(self, schedule: Schedule) -> None:
        self.move(schedule)
        assert set(schedule.decode) == self.running
        for i, slot in schedule.decode.items():
            assert self.slots[i] == slot
            self.token(i)
        for work in schedule.prefill:
            self.prefill(work)

    def move(self, schedule: Schedule) -> None:
        for source, target in schedule.moves:
            (i,) = (i for i in self.running if self.slots[i] == source)
            assert target < source and target not in self.slots.values()
            self.slots[i] = target
        used = [self.slots[i] for i in self.running]
        fitting = min(size for size in self.config.decode_batches if size >= len(used))
        in_prefill = {self.slots[i] for i in self.slots.keys() - self.running}
        free = set(range(fitting)) - set(used) - in_prefill
        # The next request may hold a slot before its first chunk is scheduled.
        taken_unseen = len(self.added) > len(self.started)
        together = all(slot < fitting for slot in used)
        assert together or len(free) <= taken_unseen, "a gap could have been filled"

    def block(self, i: int, is_last: bool) -> None:
        assert self.on_row in (None, i), "blocks of two requests share a row"
        self.on_row = None if is_last else i

    def prefill(self, work: Work) -> None:
        i, piece = work.request_id, work.piece
        if piece.joined:
            self.joined(i, work)
            return
        if self.jobs[i].onto_row or i in self.paused:
            self.block(i, piece.is_last)
        if blocks := self.paused.get(i):
            assert self.slots[i] == work.slot
            assert blocks.pop(0) == (piece.start, piece.end)
            assert piece.is_last == (not blocks)
            if piece.is_last:
                del self.paused[i]
                self.running.add(i)
                self.token(i)
            return
        assert i in self.remaining and i not in self.running
        if i not in self.slots:
            assert work.slot in range(self.config.batch)
            assert work.slot not in self.slots.values(), "a slot is held twice"
            others = self.running | self.paused.keys()
            assert all(j in others for j in self.slots), "two prompts are in prefill"
            self.slots[i] = work.slot
            self.started.append(i)
        assert self.slots[i] == work.slot
        self.chunks[i].append((piece.start, piece.end))
        self.last_chunk = i
        job = self.jobs[i]
        expected = expected_chunks(job.prompt_length, self.config.chunk, job.onto_row)
        assert self.chunks[i] == expected[: len(self.chunks[i])]
        has_pass = bool(job.pseudo_tokens) and not job.onto_row
        assert piece.is_last == (self.chunks[i] == expected and not has_pass)
        if piece.is_last:
            self.running.add(i)
            self.token(i)

    def joined(self, i: int, work: Work) -> None:
        """What is joined to a last chunk follows it at once: nobody else was scheduled since."""
        assert work.piece.is_last and i not in self.running
        assert self.slots[i] == work.slot and self.last_chunk == i
        job = self.jobs[i]
        assert self.chunks[i] == expected_chunks(job.prompt_length, self.config.chunk, False)
        self.running.add(i)
        self.token(i)

    def token(self, i: int) -> None:
        self.remaining[i] -= 1
        self.fresh[i] += 1
        if self.remaining[i] == 0:
            self.end(i)

    def end(self, i: int) -> None:
        del self.remaining[i]
        self.slots.pop(i, None)
        self.running.discard(i)
        self.paused.pop(i, None)
        self.on_row = None if self.on_row == i else self.on_row
        self.scheduler.finish(i)


@given(configs(), jobs)
def test_invariants_hold_whatever_arrives_ends_and_is_cancelled(
    config: Config, jobs: list[Job]
) -> None:
    simulation = Simulation(config, jobs)
    simulation.run()
    queue = [i for i in simulation.added if i in simulation.chunks]
    assert simulation.started == queue, "not first come, first served"


def running_scheduler(batch: int, chunk: int, most: int | None) -> Scheduler:
    """A scheduler with one request that runs for ever."""
    scheduler = Scheduler(batch, chunk, most)
    scheduler.add(0, work_of(1, chunk))
    scheduler.schedule()
    return scheduler


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 60), st.integers(1, 60))
def test_steps_keep_to_max_num_batched_tokens(
    batch: int, chunk: int, spare: int, prompt_length: int
) -> None:
    scheduler = running_scheduler(batch + 1, chunk, batch + 1 + spare)
    scheduler.add(1, work_of(prompt_length, chunk))
    most, spent = batch + 1 + spare, 0
    for steps in range(1, 1000):
        schedule = scheduler.schedule()
        cost = len(schedule.decode) + chunk * len(schedule.prefill)
        assert cost <= most or len(schedule.prefill) == 1
        spent += cost
        assert spent <= steps * most
        if any(work.piece.is_last for work in schedule.prefill):
            return
    raise AssertionError("prefill never ends")


WITH_PASS = work_of(8, 8, pseudo_tokens=8)
PACES: dict[str, tuple[tuple[int, int, int | None], int, list[tuple[Piece, ...]], list[int]]] = {
    "a chunk in every step by default": ((4, 8, None), 1, [work_of(40, 8)], [1, 1, 1, 1, 1]),
    # 3 - 1 running = 2 of 8 tokens a step.
    "a small limit": ((2, 8, 3), 1, [work_of(16, 8)], [0, 0, 0, 1, 0, 0, 0, 1]),
    "idle steps save no credit": ((2, 8, 3), 100, [work_of(16, 8)], [0, 0, 0, 1]),
    "at once where nothing runs": ((2, 8, 3), 0, [work_of(24, 8)], [1, 1, 1]),
    # Of 11 tokens the first step has 10 - 8 left for the 15; the next two have 9 each.
    "a pass is paid": ((3, 8, None), 1, [WITH_PASS, work_of(8, 8)], [2, 0, 0, 1]),
    "a pass where nothing runs": ((3, 8, None), 0, [WITH_PASS, work_of(8, 8)], [2, 1]),
    "several prompts of a large limit": ((3, 4, 12), 0, [work_of(4, 4)] * 3, [3]),
}
"""Batch, chunk and token limit; steps of a running request so far; prompts; chunks of each step."""


@pytest.mark.parametrize("pace", PACES)
def test_prefill_goes_at_the_pace_of_the_token_limit(pace: str) -> None:
    (batch, chunk, most), before, prompts, expected = PACES[pace]
    scheduler = running_scheduler(batch, chunk, most) if before else Scheduler(batch, chunk, most)
    for _ in range(1, before):
        scheduler.schedule()
    for request_id, work in enumerate(prompts, start=1):
        scheduler.add(request_id, work)
    steps = [scheduler.schedule() for _ in expected]
    assert [len(step.prefill) for step in steps] == expected
    assert all((0 in step.decode) == bool(before) for step in steps)


def test_running_requests_move_to_lower_slots_that_a_smaller_decode_step_holds() -> None:
    scheduler = Scheduler(batch=4, chunk=4, decode_batches=(1, 2, 4))
    for i in range(4):
        scheduler.add(i, work_of(4, 4))
    while len(scheduler.schedule().decode) < 4:
        pass
    scheduler.finish(0)
    assert scheduler.schedule().moves == ()  # three need the step of four
    scheduler.finish(2)
    schedule = scheduler.schedule()
    assert (schedule.moves, schedule.decode) == (((3, 0),), {1: 1, 3: 0})
    scheduler.finish(3)
    assert scheduler.schedule().moves == ((1, 0),)


def test_a_cancel_in_prefill_frees_the_slot_for_the_next_request() -> None:
    scheduler = Scheduler(batch=1, chunk=4)
    scheduler.add(0, work_of(100, 4))
    scheduler.add(1, work_of(4, 4))
    scheduler.schedule()
    scheduler.finish(0)
    (work,) = scheduler.schedule().prefill
    assert (work.request_id, work.slot) == (1, 0)


def test_a_token_limit_that_starves_prefill_is_refused() -> None:
    with pytest.raises(
        UserError, match="4 tokens a step leave nothing for prefill beside 4 batch slots"
    ):
        Scheduler(batch=4, chunk=8, max_num_batched_tokens=4)


@pytest.mark.parametrize("length", [3, 4, 5, 8, 10])
def test_a_single_prompt_is_prefilled_in_the_scheduled_chunks(length: int) -> None:
    scheduler = Scheduler(batch=1, chunk=4)
    scheduler.add(0, work_of(length, 4))
    scheduled: list[tuple[int, int]] = []
    while not scheduled or scheduled[-1][1] < length:
        taken = [work.piece for work in scheduler.schedule().prefill]
        scheduled += [(piece.start, piece.end) for piece in taken]
    executor = RecordingExecutor(make_limits(prefill_chunk=4))
    executor.prefill_prompt(0, list(range(length)))
    assert executor.ranges == scheduled


class RecordingExecutor(FakeExecutor):
    """Notes the range of each chunk."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.ranges: list[tuple[int, int]] = []

    def take(
        self, slot: int, prompt: Sequence[int], piece: Piece, temperature: float = 1.0
    ) -> Prediction:
        self.ranges.append((piece.start, piece.end))
        return super().take(slot, prompt, piece, temperature)
