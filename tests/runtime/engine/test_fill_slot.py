"""A prompt's first token does not wait until the batch slot is filled."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.fill_slot import FillByGraph
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.builds import build
from tests.runtime.requests.fake_executor import drain

PROMPTS = [[5 + i % 90 for i in range(60)], [250 - i for i in range(64)]]


@pytest.fixture(scope="module")
def made(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("fill") / "b"
    return build(checkpoint, out, L_max=64, L_recent=12, K=8, L_obs=4, prefill_chunk=16, batch=2)


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch slots that the compress step has filled, in order."""
    found: list[int] = []
    fill = FillByGraph.fill

    def fill_and_note(self: FillByGraph, slot: int, prompt_length: int) -> None:
        found.append(slot)
        fill(self, slot, prompt_length)

    monkeypatch.setattr(FillByGraph, "fill", fill_and_note)
    return found


def step(executor: Executor, slot: int, length: int) -> NDArray[np.float32]:
    at = np.zeros((3, 2), np.int64)
    at[:, slot] = 7, length, length
    return executor.decode(*at)[slot].logits.copy()


def test_the_next_call_fills_the_slot(made: Build, filled: list[int]) -> None:
    executor = open_executor(made, threads=1)
    executor.prefill_prompt(1, PROMPTS[0])
    assert filled == []
    executor.fill_slot()
    executor.fill_slot()
    assert filled == [1]
    executor.prefill_prompt(0, PROMPTS[1])
    assert filled == [1]
    late = step(executor, 0, 64)
    assert filled == [1, 0]
    executor.compress(0, 64)
    assert np.array_equal(late, step(executor, 0, 64))


def test_a_shared_prompt_cache_is_read_before_its_next_prompt(
    made: Build, filled: list[int]
) -> None:
    ours = open_executor(made, threads=1)
    other = open_executor(made, threads=1, prompt_cache=ours.prompt_cache)
    ours.prefill_prompt(0, PROMPTS[0])
    other.prefill_prompt(0, PROMPTS[1])
    assert filled == [0]
    other.close()
    found = step(ours, 0, 60)
    ours.prefill_prompt(0, PROMPTS[0])
    assert np.array_equal(found, step(ours, 0, 60))


@pytest.mark.parametrize("forget", [Executor.release, Executor.clear])
def test_a_slot_that_nobody_needs_stays_as_it_is(
    made: Build, filled: list[int], forget: Callable[[Executor, int], None]
) -> None:
    executor = open_executor(made, threads=1)
    executor.prefill_prompt(1, PROMPTS[0])
    forget(executor, 1)
    executor.fill_slot()
    assert filled == []


def test_a_slot_that_cannot_be_filled_ends_its_request_and_no_other(
    made: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two others, the first of which runs in the same steps."""
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    first, fails, last = PROMPTS[1], PROMPTS[0], PROMPTS[0][:40]
    alone = LLM(made.directory, threads=1).generate([first, last], params)
    fill = FillByGraph.fill

    def fill_others(self: FillByGraph, slot: int, prompt_length: int) -> None:
        if prompt_length == len(fails):
            raise RuntimeError("planted")
        fill(self, slot, prompt_length)

    monkeypatch.setattr(FillByGraph, "fill", fill_others)
    llm = LLM(made.directory, threads=1)
    requests = [llm.submit(prompt, params) for prompt in (first, fails, last)]
    deltas_of = drain(llm)
    found, failed, other = (deltas_of[one] for one in requests)
    assert len(failed[0].token_ids) == 1 and failed[-1].finish_reason == "error"
    assert str(failed[-1].exception) == "planted"
    for deltas, right in zip((found, other), alone, strict=True):
        assert tuple(token for one in deltas for token in one.token_ids) == right.token_ids


def test_a_first_token_comes_before_the_vote(made: Build, filled: list[int]) -> None:
    llm = LLM(made.directory, threads=1)
    stream = iter(llm.stream(PROMPTS[0], SamplingParams(max_tokens=2, ignore_eos=True)))
    next(stream)
    assert filled == []
    next(stream)
    assert filled == [0]
    llm.generate(PROMPTS[1], SamplingParams(max_tokens=1))
    assert filled == [0]
