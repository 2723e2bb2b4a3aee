"""Load of many clients: their requests, counted tokens, and the server against the runtime."""

import signal
from collections.abc import Iterator
from itertools import count
from threading import Event, Thread, main_thread
from typing import Any

import pytest

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.measure.bench.clients import Exchange, TritonModel, Workload, drive_in_process
from snapexport.measure.bench.load import LoadPlan, Outcome, Side, measure, summed_up
from snapexport.measure.bench.options import LoadOptions
from snapexport.measure.bench.results import Results
from snapexport.runtime.requests.llm import LLM
from tests.measure.bench import triton
from tests.measure.bench.triton import FakeTriton
from tests.patience import PATIENCE
from tests.runtime.requests.fake_executor import FakeExecutor, make_limits


class Ticks:
    """A clock that is never the same twice."""

    def __init__(self) -> None:
        self._ticks = count()

    def __call__(self) -> float:
        return float(next(self._ticks))


@pytest.fixture
def server() -> Iterator[FakeTriton]:
    with triton.running() as server:
        yield server


def prompts(*firsts: int) -> list[list[int]]:
    return [[first, 7, 8] for first in firsts]


def test_tokens_that_arrive_together_share_their_gap() -> None:
    exchange = Exchange(sent=10.0)
    for at, tokens in ((12.0, 1), (13.0, 0), (16.0, 2), (17.0, 1)):
        exchange.arrived(at, tokens)
    assert exchange.ttft == 2.0
    assert exchange.tokens == 4
    assert list(exchange.gaps()) == [2.0, 2.0, 1.0]


def test_in_process_client_sends_its_next_request_when_one_ends() -> None:
    prompt = list(range(6))
    workload = Workload([[prompt] * 3] * 5, max_tokens=4)
    llm = LLM.from_executor(FakeExecutor(make_limits(batch=2)))
    exchanges = drive_in_process(llm, workload, Ticks())
    assert [one.tokens for one in exchanges] == [4] * 15
    assert not llm.busy
    sent = [one.sent for one in exchanges]
    assert sent == sorted(sent)
    ends = sorted(one.arrivals[-1][0] for one in exchanges)
    # Five clients send at once; each later request is sent when one of those before it has ended.
    assert all(later > end for later, end in zip(sent[5:], ends, strict=False))


def test_in_process_client_goes_on_after_a_broken_request() -> None:
    llm = LLM.from_executor(FakeExecutor(make_limits(), broken_token=99))
    exchanges = drive_in_process(llm, Workload([[[99, 1], [5, 6]]], max_tokens=3), Ticks())
    assert [one.error is None for one in exchanges] == [False, True]
    assert exchanges[1].tokens == 3


def test_load_client_sends_every_prompt_once_and_counts_its_tokens(server: FakeTriton) -> None:
    workload = Workload([prompts(10, 11), prompts(12, 13), prompts(14, 15)], max_tokens=5)
    exchanges = TritonModel(server.address, "tiny").drive(workload, Ticks())
    assert [one.tokens for one in exchanges] == [5] * 6
    assert [len(one.arrivals) for one in exchanges] == [3] * 6
    assert [one.error for one in exchanges] == [None] * 6
    for first, second in zip(exchanges[::2], exchanges[1::2], strict=True):
        assert second.sent > first.arrivals[-1][0]
    bodies = sorted(server.requests, key=lambda body: body["input_ids"])
    assert bodies == [
        {"input_ids": [first, 7, 8], "max_tokens": 5}
        | {"stream": True, "ignore_eos": True, "return_num_output_tokens": True}
        for first in range(10, 16)
    ]


def test_load_client_notes_a_token_before_the_stream_ends(server: FakeTriton) -> None:
    """The fake holds its second event back until the client has noted the first."""
    server.hold = Event()
    ticks = Ticks()

    def clock() -> float:
        now = ticks()
        if now == 1.0:  # after that of sending
            assert server.hold is not None
            server.hold.set()
        return now

    (one,) = TritonModel(server.address, "tiny").drive(Workload([prompts(9)], 4), clock)
    assert (one.tokens, one.error) == (4, None)
    assert server.waits == [True, True]


def test_load_client_goes_on_after_refused_and_broken_requests(server: FakeTriton) -> None:
    workload = Workload([prompts(server.refused, server.broken, 9)], max_tokens=4)
    refused, broken, good = TritonModel(server.address, "tiny").drive(workload, Ticks())
    assert refused.error == 'HTTPException: status 503: {"error": "the queue is full"}'
    assert broken.error == "the executor broke"
    assert (good.error, good.tokens) == (None, 4)


def test_load_client_counts_requests_to_a_vanished_server_as_errors() -> None:
    with triton.running() as server:
        model = TritonModel(server.address, "tiny")
    exchanges = model.drive(Workload([prompts(9, 9)], max_tokens=4), Ticks())
    assert ["refused" in str(one.error) for one in exchanges] == [True, True]


def test_interrupted_load_client_closes_its_connection(server: FakeTriton) -> None:
    """Ctrl-C while the server holds every stream."""
    server.hold, interrupted = Event(), Event()

    def interrupt() -> None:
        """Again until it is heard: a signal just before a thread waits does not wake it."""
        server.answered.wait(PATIENCE)
        while not interrupted.wait(0.2):
            signal.pthread_kill(main_thread().ident or 0, signal.SIGUSR1)

    def leave(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise SystemExit(130)

    former = signal.signal(signal.SIGUSR1, leave)
    thread = Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(SystemExit):
            TritonModel(server.address, "tiny").drive(Workload([prompts(9, 9)], 4), Ticks())
    finally:
        signal.signal(signal.SIGUSR1, former)
        thread.join()
    assert len(server.requests) == 1


def test_missing_server_or_model_is_refused(server: FakeTriton) -> None:
    TritonModel(server.address, "tiny").require_ready()
    with pytest.raises(UserError, match="has no model 'other' that is ready"):
        TritonModel(server.address, "other").require_ready()
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match="no server answers at"):
        TritonModel(server.address, "tiny").require_ready()


def exchange(sent: float, *arrivals: tuple[float, int], error: str | None = None) -> Exchange:
    return Exchange(sent, list(arrivals), error)


def test_load_throughput_spans_the_first_request_to_the_last_token() -> None:
    pair = [exchange(0, (1, 1), (4, 3)), exchange(2, (3, 1), (5, 5)), exchange(3, error="full")]
    outcome = Outcome("server", 2, 0, pair)
    assert outcome.tokens_per_second == 10 / 5
    assert Outcome("server", 2, 0, [exchange(3, error="full")]).tokens_per_second == 0


def test_load_rows_pool_rounds_and_take_the_ratio_round_by_round() -> None:
    def outcome(side: Side, round: int, seconds: float) -> Outcome:
        return Outcome(side, 1, round, [exchange(0, (seconds / 2, 1), (seconds, 9))])

    outcomes = [outcome("in_process", 0, 1), outcome("server", 0, 2)]
    outcomes += [outcome("in_process", 1, 10), outcome("server", 1, 40)]
    outcomes += [outcome("in_process", 2, 10), outcome("server", 2, 16)]
    alone, served = summed_up(outcomes)
    assert (alone["side"], served["side"]) == ("in_process", "server")
    assert alone["tokens_per_second"]["median"] == 1.0
    assert alone["ttft_seconds"]["median"] == 5.0
    assert (served["ratio"], alone["ratio"]) == (0.5, None)
    assert (served["requests"], served["tokens"], served["failed"]) == (3, 30, 0)
    assert served["itl_seconds"]["samples"] == 27


def test_failed_load_requests_are_counted_and_one_is_shown() -> None:
    outcome = Outcome("server", 1, 0, [exchange(0, error="full")] * 2)
    (row,) = summed_up([outcome])
    assert (row["failed"], row["first_error"], row["requests"]) == (2, "full", 0)
    assert row["ttft_seconds"] is None and row["ratio"] is None


def load_plan(build: Build, **options: Any) -> LoadPlan:
    given = {"clients": (2, 1), "requests": 1, "repeat": 2, "max_tokens": 3} | options
    return LoadPlan.of(build, LoadOptions(server="http://127.0.0.1:1", **given))


def test_workload_is_reproducible_by_seed_and_has_no_equal_prompts(tiny_build: Build) -> None:
    plan = load_plan(tiny_build, requests=2)
    drawn = plan.workload(1, clients=3)
    assert drawn == plan.workload(1, clients=3) != plan.workload(2, clients=3)
    assert drawn != load_plan(tiny_build, requests=2, seed=1).workload(1, clients=3)
    assert [len(client) for client in drawn.prompts] == [2, 2, 2]
    assert len({tuple(prompt) for client in drawn.prompts for prompt in client}) == 6


def test_server_and_runtime_take_turns_with_the_same_requests(tiny_build: Build) -> None:
    plan, seen = load_plan(tiny_build), list[tuple[str, Workload]]()

    def side(name: str) -> Any:
        def drive(workload: Workload) -> list[Exchange]:
            seen.append((name, workload))
            return [exchange(0, (1, 3)) for _ in workload.prompts]

        return drive

    progress: list[tuple[int, int]] = []
    progress_of = lambda _, done, total: progress.append((done, total))  # noqa: E731
    results = Results("load", "", plan.options, progress=progress_of)
    measure(plan, {"in_process": side("a"), "server": side("b")}, results)
    assert progress == [(done, 8) for done in range(9)]
    assert [name for name, _ in seen] == ["a", "b"] * 5
    pairs = [(one, other) for (_, one), (_, other) in zip(seen[::2], seen[1::2], strict=True)]
    assert all(one == other for one, other in pairs)
    assert [len(one.prompts) for one, _ in pairs] == [1, 1, 2, 2, 1]
    assert len({tuple(one.prompts[0][0]) for one, _ in pairs}) == 5
    assert [row["clients"] for row in results.sections["load"]] == [1, 1, 2, 2]


def test_failed_first_request_ends_the_load_run(tiny_build: Build) -> None:
    def refuse(workload: Workload) -> list[Exchange]:
        return [exchange(0, error="full")]

    plan = load_plan(tiny_build)
    with pytest.raises(UserError, match=r"a first request failed \(server\): full"):
        measure(plan, {"server": refuse}, Results("load", "", plan.options))


def test_load_prompts_that_do_not_fit_are_refused(tiny_build: Build) -> None:
    assert load_plan(tiny_build).options.prompt_tokens == 32
    with pytest.raises(UserError, match="prompts of 65 tokens and 3 more do not fit"):
        load_plan(tiny_build, prompt_tokens=65)
