"""Graphs that are opened when they run: how many are held, and what they answer."""

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest

from snapexport.contract.build_directory import Build
from snapexport.measure.eval import loaded_systems
from snapexport.measure.eval.loaded_systems import loading
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.ort import backend as module
from snapexport.vault import CHECKPOINT
from tests.builds import build
from tests.measure.eval.builds import vault_grid

POLICIES = "full", "snapstream", "streaming", "snapstream:vote=sum"


@pytest.fixture(scope="module")
def integer_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    options: dict[str, Any] = {"kv_budget": 64, "prefill_chunk": 128, "weights": "int4"}
    out = tmp_path_factory.mktemp("integers") / "b"
    return build(CHECKPOINT, out, L_max=600, batch=1, baseline=True, **options)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the graphs that were opened."""
    names: list[str] = []
    make = module.OnnxRuntimeBackend._open

    def open_graph(self: Any, graph: Any) -> Any:
        names.append(graph)
        return make(self, graph)

    monkeypatch.setattr(module.OnnxRuntimeBackend, "_open", open_graph)
    yield names


@pytest.mark.parametrize(
    ("free", "left", "held", "times"),
    [(0, 0, 1, 8), (None, None, 1, 8), (1 << 40, 1 << 39, 3, 3), (1 << 40, 1 << 38, 1, 8)],
)
def test_integer_weights_are_held_while_there_is_memory(
    integer_build: Build,
    opened: list[str],
    monkeypatch: pytest.MonkeyPatch,
    free: int | None,
    left: int | None,
    held: int,
    times: int,
) -> None:
    """A graph that is opened again gives what it gave. left: of the free memory, from then on."""
    answers = chain([free], repeat(left))
    monkeypatch.setattr(loaded_systems, "host_available", lambda: next(answers))
    grid = vault_grid(integer_build, policies=POLICIES)
    prompts = np.random.default_rng(0).integers(1, 1000, (2, 300))
    with loading(integer_build, grid.options) as loaded:
        executors = [llm.executor for llm in loaded.load(grid.systems)]
        assert opened == ["compress"] * 3
        graphs = loaded._graphs._opened
        found = []
        for prompt in prompts:
            for executor in executors:
                found.append(_logits(executor, prompt))
                assert len(graphs["decode"]) <= held
        assert len(graphs["decode"]) == held
        assert len(graphs["prefill"]) == 2  # with a window, and without one
        assert opened.count("prefill") == 2
        assert opened.count("decode") == times
    plain = open_executor(integer_build, threads=1)
    for prompt, own in zip(prompts, found[1 :: len(POLICIES)], strict=True):
        np.testing.assert_array_equal(own, _logits(plain, prompt))


def test_mapped_weights_stay_open_and_equal_caches_apart(
    vault_build: Build, opened: list[str]
) -> None:
    """Of two systems with equal caches one decodes before the other, from the same prompt."""
    same = f"snapstream:L_obs={vault_build.manifest.geometry.vote.L_obs}"
    grid = vault_grid(vault_build, policies=("full", "snapstream", same))
    assert grid.systems[1].geometry == grid.systems[2].geometry
    with loading(vault_build, grid.options) as loaded:
        executors = [llm.executor for llm in loaded.load(grid.systems)]
        assert executors[1] is not executors[2]
        for prompt in np.random.default_rng(0).integers(1, 1000, (2, 300)):
            for executor in executors:
                _logits(executor, prompt)
        assert opened.count("decode") == opened.count("prefill") == 2


def _logits(executor: Any, prompt: Any) -> Any:
    executor.prefill_prompt(0, prompt.tolist())
    token, place = np.array([7]), np.array([len(prompt)])
    return executor.decode(token, place, place).logits.copy()
