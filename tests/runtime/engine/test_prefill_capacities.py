"""Prefill graphs of smaller capacity give what the largest alone gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.runtime.engine.bound_graph import Logits
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from tests.builds import build

C = 16
OPTIONS: dict[str, Any] = {"L_max": 128, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": C}
LENGTHS = (128, 10, 90, 16, 64, 31, 33, 32, 128)
"""Shorter ones after longer ones, and the other way round."""


@pytest.fixture(scope="module", params=["tensorrt", "portable"])
def made(request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: Any) -> Build:
    out = tmp_path_factory.mktemp("capacities") / "b"
    options = OPTIONS | {"target": request.param, "baseline": True}
    return build(checkpoint, out, prefill_capacities=(32, 64), **options)


def tokens(length: int, seed: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(3, 257, length).tolist()
    return found


def prefill(executor: Executor, ids: list[int]) -> Logits:
    """Logits after the prompt; its chunks are run as the scheduler would."""
    return executor.prefill_prompt(0, ids).logits.copy()


def of_largest_alone(made: Build, **options: bool) -> Executor:
    """An executor of the same build that has but the prefill graph of L_max positions."""
    executor = open_executor(made, threads=1, **options)
    graphs = executor._takers["chunk"]._graphs
    executor._takers["chunk"]._graphs = {C: {128: graphs[C][128]}}
    return executor


def assert_same_caches(ours: Executor, plain: Executor, slots: int | None = None) -> None:
    """In batch slot 0, up to so many cache slots."""
    for name, cache in plain.decode_buffers.items():
        if name.startswith("past_key_values"):
            found = ours.decode_buffers[name][0, :, :slots]
            assert np.abs(found - cache[0, :, :slots]).max() < 1e-5, name


def test_build_has_a_prefill_graph_for_each_capacity(made: Build) -> None:
    assert made.manifest.prefill_graphs() == {32: "prefill.32", 64: "prefill.64", 128: "prefill"}
    inputs = {spec.name: spec.shape for spec in made.manifest.graphs["prefill.32"].inputs}
    assert inputs["past_key_values.0.key"][2] == 32


@pytest.mark.parametrize("baseline", [False, True])
def test_prompts_of_all_lengths_give_the_same_logits_and_caches(
    made: Build, baseline: bool
) -> None:
    """One after the other in the same executor, so that each finds the last one's leftovers."""
    ours, plain = open_executor(made, threads=1, baseline=baseline), None
    for seed, length in enumerate(LENGTHS):
        plain = of_largest_alone(made, baseline=baseline)
        ids = tokens(length, seed)
        got, want = prefill(ours, ids), prefill(plain, ids)
        assert np.abs(got - want).max() < 1e-5, length
        # A longer prompt's leftovers are behind it.
        assert_same_caches(ours, plain, length if baseline else None)


def test_pseudo_tokens_after_a_prompt_may_need_a_larger_capacity(
    checkpoint: Path, tmp_path: Path
) -> None:
    options = OPTIONS | {"target": "portable", "vote_queries": "pseudo"}
    made = build(checkpoint, tmp_path / "b", prefill_capacities=(32, 64), **options)
    ours = open_executor(made, threads=1)
    for seed, length in enumerate((30, 62, 124, 60, 29, 30)):
        ids, plain = tokens(length, seed), of_largest_alone(made)
        assert np.abs(prefill(ours, ids) - prefill(plain, ids)).max() < 1e-5, length
        for got, want in zip(
            ours.topk_positions() or (), plain.topk_positions() or (), strict=True
        ):
            assert np.array_equal(got, want), length
        assert_same_caches(ours, plain)


def test_a_common_beginning_is_found_again_after_each_move(
    made: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that share their first 48 tokens, in caches of 64 and of 128 positions."""
    executor, common = open_executor(made, threads=1), tokens(48, 0)
    ran: list[int] = []
    for capacity, graph in executor._takers["chunk"]._graphs[C].items():
        run = graph.run
        monkeypatch.setattr(graph, "run", lambda n=capacity, run=run: (ran.append(n), run())[1])
    for seed, length in enumerate((64, 112, 52, 128)):
        ids = common + tokens(length - 48, seed + 1)
        ran.clear()
        got = prefill(executor, ids)
        assert np.abs(got - prefill(of_largest_alone(made), ids)).max() < 1e-5, length
        expected = {0: [32, 32, 64, 64], 1: [64, 128, 128, 128], 2: [64], 3: [64] * 2 + [128] * 4}
        assert ran == expected[seed]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"target": "onnxruntime"}, "not supported with --target onnxruntime"),
        ({"prefill_capacities": (8,)}, "8 is below 16"),
        ({"prefill_capacities": (32, 48)}, "48 is below 64"),
        ({"prefill_capacities": (96,)}, "128 is below 192"),
        ({"prefill_chunk": 128}, "for prefill in chunks"),
    ],
)
def test_capacities_without_sense_are_refused(
    checkpoint: Path, tmp_path: Path, changes: dict[str, Any], refused: str
) -> None:
    options = OPTIONS | {"target": "tensorrt", "prefill_capacities": (32,)} | changes
    with pytest.raises(UserError, match=refused):
        build(checkpoint, tmp_path / "b", **options)
