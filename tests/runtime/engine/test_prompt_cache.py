"""Prompts that begin alike: chunks that the prompt cache holds are not run again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport.contract.build_directory import Build
from snapexport.contract.pieces import pieces_of
from snapexport.methods.top_tokens.run import TopTokens
from snapexport.runtime.engine.backend import DeviceError
from snapexport.runtime.engine.bound_graph import Logits
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from tests.builds import build

C = 24  # the tiny build's prefill chunk


def prompt(length: int, seed: int = 0, common: int = 0) -> list[int]:
    """Random tokens after `common` ones that all prompts share."""
    rng = np.random.default_rng(seed)
    return [*range(3, 3 + common), *rng.integers(3, 257, length - common).tolist()]


def prefill(executor: Executor, ids: list[int]) -> Logits:
    """The whole prompt into slot 0, as the scheduler would feed it."""
    return executor.prefill_prompt(0, ids).logits.copy()


def runs(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each chunk that is really run."""
    (bound,), counted = executor._takers["chunk"]._graphs[C].values(), []
    run = bound.run
    monkeypatch.setattr(bound, "run", lambda: (counted.append(1), run())[1])
    return counted


@pytest.mark.parametrize(
    ("first", "second", "skipped"),
    [
        (prompt(60, 1, common=50), prompt(60, 2, common=50), 1),
        (prompt(60, 1, common=20), prompt(60, 2, common=20), 0),
        (prompt(48, 1, common=48), prompt(64, 2, common=48), 2),
        (prompt(64, 1, common=64), prompt(64, 1, common=64), 3),
        (prompt(20, 1, common=20), prompt(20, 1, common=20), 1),
        (prompt(20, 1, common=20), prompt(60, 1, common=20), 0),
        (prompt(60, 1, common=48), prompt(10, 1, common=10), 0),
    ],
)
def test_a_common_beginning_is_skipped_with_identical_logits(
    tiny_build: Build,
    monkeypatch: pytest.MonkeyPatch,
    first: list[int],
    second: list[int],
    skipped: int,
) -> None:
    fresh = prefill(open_executor(tiny_build), second)
    executor = open_executor(tiny_build)
    prefill(executor, first)
    counted = runs(executor, monkeypatch)
    assert np.array_equal(prefill(executor, second), fresh)
    assert len(counted) == max(1, -(-len(second) // C)) - skipped


def test_executors_of_one_model_share_a_prompt_cache(
    tiny_build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = prompt(60)
    alone = prefill(open_executor(tiny_build, baseline=True), ids)
    first = open_executor(tiny_build)
    second = open_executor(tiny_build, baseline=True, prompt_cache=first.prompt_cache)
    prefill(first, ids)
    counted = runs(second, monkeypatch)
    assert np.array_equal(prefill(second, ids), alone)
    assert len(counted) == 2  # of three: the second chunk was overlapped by the last


def test_executors_of_equal_outputs_run_a_common_prompt_once(
    tiny_build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one compresses it by the first one's query windows."""
    ids, other = prompt(60), prompt(60, seed=1)
    alone = open_executor(tiny_build)
    first = open_executor(tiny_build)
    second = open_executor(tiny_build, prompt_cache=first.prompt_cache)
    prefill(first, ids)
    counted = runs(second, monkeypatch)
    assert np.array_equal(prefill(second, ids), prefill(alone, ids))
    assert not counted
    for mine, own in zip(second.topk_positions(), alone.topk_positions(), strict=True):
        assert np.array_equal(mine, own)
    prefill(first, other)
    assert np.array_equal(prefill(second, ids), prefill(alone, ids))
    assert len(counted) == 3


def test_a_prompt_that_was_left_half_way_is_run_again(
    tiny_build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, ids = open_executor(tiny_build), prompt(60)
    prefill(executor, ids)
    executor.take(0, prompt(60, seed=1), pieces_of(60, executor.limits.prefill)[0])
    counted = runs(executor, monkeypatch)
    prefill(executor, ids)
    assert len(counted) == 3


def test_a_cleared_prompt_is_run_again(tiny_build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, ids = open_executor(tiny_build), prompt(64)
    prefill(executor, ids)
    executor.clear(0)
    counted = runs(executor, monkeypatch)
    prefill(executor, ids)
    assert len(counted) == 3


def test_a_repeated_prompt_at_another_temperature_has_its_own_top_tokens(
    checkpoint: Path, tmp_path: Path
) -> None:
    """The graph writes logsumexp(logits / temperature) to the same memory each time."""
    cache = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": C}
    executor = open_executor(build(checkpoint, tmp_path / "b", top_tokens=8, **cache))
    ids = prompt(60)

    def normalizer(temperature: float) -> float:
        top = executor.prefill_prompt(0, ids, temperature)
        assert isinstance(top, TopTokens)
        return top.log_normalizer

    warm, hot = normalizer(1.0), normalizer(2.0)
    assert warm != hot
    assert (normalizer(2.0), normalizer(1.0), normalizer(2.0)) == (hot, warm, hot)


def test_tokens_are_forgotten_where_a_chunk_could_not_be_written(
    tiny_build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, ids, other = open_executor(tiny_build), prompt(60), prompt(60, seed=1)
    prefill(executor, other)
    cache = executor.prompt_cache
    assert cache
    parts = cache.read(0)
    fresh = prefill(executor, ids)

    def fail(*_: Any) -> None:
        raise DeviceError("gone")

    monkeypatch.setattr(executor.backend.memory, "write", fail)
    with pytest.raises(DeviceError):
        cache.write(0, other[:C], parts)
    counted = runs(executor, monkeypatch)
    assert np.array_equal(prefill(executor, ids), fresh)
    assert len(counted) == 3
