"""A build's engine as a contender: the runtime's own tokens, and what it takes of memory."""

from functools import partial

import numpy as np
import pytest

from snapexport.bench import memory
from snapexport.bench.contender import Contender, EngineContender, chunks
from snapexport.bench.entrants import entrants
from snapexport.bench.hand_over import HandOver, times_hand_over
from snapexport.bench.options import BenchOptions
from snapexport.bench.plan import Plan
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.runtime.llm import LLM
from snapexport.runtime.requests import SamplingParams
from tests.bench.fakes import entrant
from tests.runtime.fake_executor import FakeExecutor, make_limits

PROMPTS = [[(7 * slot + 3 * at) % 250 for at in range(11 - slot)] for slot in range(3)]


def test_it_decodes_what_the_runtime_would() -> None:
    params = SamplingParams(max_tokens=5)
    runtime = LLM.from_executor(FakeExecutor(make_limits())).generate(PROMPTS, params)
    engine = FakeExecutor(make_limits())
    contender = EngineContender(engine)
    for slot, prompt in enumerate(PROMPTS):
        contender.prefill(slot, prompt)
    for _ in range(5):
        contender.decode(active=3)
    for slot, completion in enumerate(runtime):
        assert tuple(engine.slots[slot]) == (*PROMPTS[slot], *completion.token_ids)


def test_only_active_slots_go_on() -> None:
    engine = FakeExecutor(make_limits())
    contender = EngineContender(engine)
    for slot, prompt in enumerate(PROMPTS):
        contender.prefill(slot, prompt)
    contender.decode(active=3)
    contender.decode(active=1)
    assert [len(slot) for slot in engine.slots] == [13, 11, 10]


@pytest.mark.parametrize(("length", "starts"), [(3, [0]), (4, [0]), (5, [0, 1]), (10, [0, 4, 6])])
def test_chunks_are_cut_as_the_scheduler_does(length: int, starts: list[int]) -> None:
    parts = list(chunks(length, 4))
    assert [part.start for part in parts] == starts
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]


def _unloadable() -> Contender:
    raise UserError("no such contender", "take another")


def test_memory_is_measured_in_a_process_of_its_own(tiny_build: Build) -> None:
    options = BenchOptions(contexts=(40,), decode_steps=2, threads=1)
    (own,) = entrants(tiny_build, options)
    found = memory.measure(own, Plan.of(options, [own]), vocab_size=257)
    assert 1 << 20 < found.empty < found.loaded <= found.peak
    assert 0 < found.anonymous_loaded <= found.loaded
    assert 0 < found.anonymous <= found.peak


def test_an_error_of_that_process_is_told_here() -> None:
    one = entrant(load=_unloadable)
    with pytest.raises(UserError) as error:
        memory.measure(one, Plan.of(BenchOptions(contexts=(4,)), [one]), vocab_size=9)
    assert (error.value.message, error.value.hint) == ("no such contender", "take another")


def test_a_death_of_that_process_is_told_here() -> None:
    one = entrant(load=partial(exec, "import os; os._exit(7)"))
    with pytest.raises(UserError, match="ended with status 7"):
        memory.measure(one, Plan.of(BenchOptions(contexts=(4,)), [one]), vocab_size=9)


def test_the_vote_cut_out_keeps_what_the_whole_graph_keeps(tiny_build: Build) -> None:
    assert times_hand_over(tiny_build)
    hand_over = HandOver(tiny_build, threads=1)
    assert hand_over.vote is not None
    kept = hand_over.vote._arrays[1]
    assert list(kept) == [names.topk_positions(layer) for layer in range(2)]
    hand_over.set_length(50)
    hand_over.whole.run()
    whole = {name: array.copy() for name, array in kept.items()}
    for array in kept.values():
        array[:] = -7
    hand_over.vote.run()
    for name, array in kept.items():
        np.testing.assert_array_equal(array, whole[name])
        assert array.min() >= 4 and array.max() < 50 - 12
