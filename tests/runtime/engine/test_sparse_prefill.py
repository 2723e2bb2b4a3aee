"""Sparse prefill in the runtime: what is run, and what a later prompt finds in the cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapexport.compare.loop import Loop
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from tests.builds import build

C, BUDGET, L_MAX = 16, 64, 192
OPTIONS: dict[str, Any] = {"L_max": L_MAX, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": C}
SPARSE = OPTIONS | {"prefill_budget": BUDGET}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sparse")


@pytest.fixture(scope="module")
def made(folder: Path, checkpoint: Path) -> Build:
    return build(checkpoint, folder / "b", **SPARSE, baseline=True)


@pytest.fixture(scope="module")
def exact(folder: Path, checkpoint: Path) -> Build:
    return build(checkpoint, folder / "exact", **OPTIONS)


def tokens(length: int, seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng([length, seed]).integers(3, 257, length).tolist()
    return found


def taken(executor: Executor, prompt: list[int]) -> list[np.ndarray]:
    """Logits after the prompt, and batch slot 0's caches."""
    logits = executor.prefill_prompt(0, prompt).logits.copy()
    buffers = executor.decode_buffers.items()
    return [logits, *(one[0].copy() for name, one in buffers if names.is_past(name))]


def assert_equal(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("length", [5, C, BUDGET, BUDGET + C, BUDGET + C - 3])
def test_prompts_that_fit_the_budget_change_in_no_bit(
    made: Build, exact: Build, length: int
) -> None:
    executor, prompt = open_executor(made, threads=1), tokens(length)
    taken(executor, tokens(L_MAX))  # its keys and values are still in the caches
    assert_equal(taken(executor, prompt), taken(open_executor(exact, threads=1), prompt))


@pytest.mark.parametrize("length", [BUDGET + C + 1, 130, 160, L_MAX])
def test_runtime_runs_the_graphs_that_the_contract_names(made: Build, length: int) -> None:
    prompt, runner = tokens(length), Loop(made)
    with runner:
        want = runner.logits(np.array(prompt), length)[0]
    found = open_executor(made, threads=1).prefill_prompt(0, prompt).logits
    assert np.abs(found - want).max() < 1e-5
    with Loop(made, baseline=True) as dense:
        differs = np.abs(found - dense.logits(np.array(prompt), length)[0]).max() > 1e-4
    assert differs == (length > BUDGET + 2 * C)


@pytest.fixture(scope="module")
def executors(made: Build) -> tuple[Executor, Executor]:
    return open_executor(made, threads=1), open_executor(made, threads=1)


@settings(max_examples=10, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_leftovers_of_an_earlier_prompt_change_nothing(
    executors: tuple[Executor, Executor], data: st.DataObject
) -> None:
    """Also where one ended with a whole chunk, which is not sparse."""
    executor, cleared = executors
    executor.clear(0)
    whole = [tokens(L_MAX, seed) for seed in (1, 2)]
    lengths = st.one_of(st.integers(1, L_MAX), st.sampled_from(range(C, L_MAX + 1, C)))
    for _ in range(4):
        length, common = data.draw(lengths), data.draw(lengths)
        prompt = (whole[0][:common] + whole[1][common:])[:length]
        cleared.clear(0)
        assert_equal(taken(executor, prompt), taken(cleared, prompt))


def test_a_full_cache_beside_it_has_a_prompt_cache_of_its_own(made: Build) -> None:
    prompt, ours = tokens(170), open_executor(made, threads=1)
    taken(ours, prompt)
    beside = open_executor(made, threads=1, baseline=True, prompt_cache=ours.prompt_cache)
    alone = open_executor(made, threads=1, baseline=True)
    assert_equal(taken(beside, prompt), taken(alone, prompt))
    again = open_executor(made, threads=1, prompt_cache=alone.prompt_cache)
    assert_equal(taken(again, prompt), taken(ours, prompt))


@pytest.mark.parametrize(
    "options",
    [
        {"target": "portable", "prefill_capacities": (32, 96)},
        {"top_tokens": 8},
        {"vote_queries": "pseudo"},
        {"vote_queries": "repeat", "L_obs": None},
        {"cache_dtype": "int8", "decode_attention": "valid"},
        {"policy": "streaming", "K": None, "L_obs": None},
    ],
    ids=str,
)
def test_it_goes_with_other_options(
    options: dict[str, Any], folder: Path, checkpoint: Path
) -> None:
    """The prompt's logits depend on none of them."""
    want = build(checkpoint, folder / f"{hash(str(options))}", **SPARSE | options)
    usual = build(checkpoint, folder / f"{hash(str(options))}.usual", **SPARSE)
    for length in (170, 175):
        prompt = tokens(length)
        ours, theirs = (
            open_executor(one, threads=1).prefill_prompt(0, prompt).logits for one in (want, usual)
        )
        assert np.abs(ours - theirs).max() < 1e-4
