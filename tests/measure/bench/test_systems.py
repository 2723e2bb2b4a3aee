"""A build's executor as a benchmarked system: its tokens are the runtime's; its memory."""

from functools import partial
from typing import Any

import pytest

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.measure.bench.probes import extracted_vote, run_vote
from snapexport.measure.bench.speed import fill_and_decode
from snapexport.measure.bench.systems import ExecutorSystem, load, measure_memory
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.runtime.requests.fake_executor import FakeExecutor, make_limits

FILL = partial(fill_and_decode, 4, 40, 2, 257)
PROMPTS = [[(7 * slot + 3 * at) % 250 for at in range(11 - slot)] for slot in range(3)]


def test_an_executor_system_decodes_the_tokens_of_the_runtime() -> None:
    params = SamplingParams(max_tokens=5)
    runtime = LLM.from_executor(FakeExecutor(make_limits())).generate(PROMPTS, params)
    executor = FakeExecutor(make_limits())
    system = ExecutorSystem(executor)
    for slot, prompt in enumerate(PROMPTS):
        system.prefill(slot, prompt)
    for _ in range(5):
        system.decode(active=3)
    for slot, completion in enumerate(runtime):
        assert tuple(executor.slots[slot]) == (*PROMPTS[slot], *completion.token_ids)


def test_only_active_batch_slots_decode() -> None:
    executor = FakeExecutor(make_limits())
    system = ExecutorSystem(executor)
    for slot, prompt in enumerate(PROMPTS):
        system.prefill(slot, prompt)
    system.decode(active=3)
    system.decode(active=1)
    assert [len(slot) for slot in executor.slots] == [13, 11, 10]


def _unloadable() -> ExecutorSystem:
    raise UserError("no such system", "take another")


def test_memory_is_measured_in_a_process_of_its_own(tiny_build: Build) -> None:
    found = measure_memory("one", partial(load, tiny_build.directory, threads=1), FILL)
    assert 1 << 20 < found["empty"] < found["loaded"] <= found["peak"]
    assert 0 < found["anonymous_loaded"] <= found["loaded"]
    assert 0 < found["anonymous"] <= found["peak"]


def test_user_error_in_the_memory_process_is_raised_in_its_parent() -> None:
    with pytest.raises(UserError) as error:
        measure_memory("one", _unloadable, FILL)
    assert (error.value.message, error.value.hint) == ("no such system", "take another")


def test_death_of_the_memory_process_is_an_error() -> None:
    dies: Any = partial(exec, "import os; os._exit(7)")
    with pytest.raises(UserError, match="memory of one ended with status 7"):
        measure_memory("one", dies, FILL)


def test_extracted_vote_keeps_only_eligible_positions(tiny_build: Build) -> None:
    vote = extracted_vote(tiny_build, threads=1)
    assert vote is not None
    assert list(vote.outputs) == [names.topk_positions(layer) for layer in range(2)]
    run_vote(vote, 50)
    for array in vote.outputs.values():
        assert array.min() >= 4 and array.max() < 50 - 12
