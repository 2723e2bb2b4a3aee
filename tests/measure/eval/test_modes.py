"""Modes of an evaluation: when the cache sees the question. A shared prompt cache changes none."""

import math
from collections import defaultdict
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from snapexport.contract.build_directory import Build
from snapexport.files.tokenizer_file import TOKENIZER
from snapexport.measure.eval.grid import Grid
from snapexport.measure.eval.loaded_systems import loading
from snapexport.measure.eval.records import Outcome
from snapexport.measure.eval.run import TimeLimit, outcomes_of
from snapexport.measure.options import DEFAULT_TASKS, MODES
from snapexport.runtime.requests.request import SamplingParams
from tests.measure.eval.builds import vault_grid

CHOICES: dict[str, Any] = {
    "lengths": (384,),
    "depths": (0.0, 0.4),
    "samples": 3,
    "modes": tuple(MODES),
}
POLICIES = ("full", "snapstream", "streaming", "sage")


def outcomes(build: Build, **choices: Any) -> list[Outcome]:
    grid = vault_grid(build, **CHOICES | choices)
    with loading(build, grid.options) as loaded:
        return list(outcomes_of(grid, loaded, (), TimeLimit(math.inf)))


@pytest.fixture(scope="module")
def together(vault_build: Build) -> list[Outcome]:
    return outcomes(vault_build, policies=POLICIES)


def test_default_task_of_the_bundled_checkpoint_is_the_vault(
    vault_build: Build, tmp_path: Path
) -> None:
    assert vault_grid(vault_build, tasks=None).options.tasks == ("vault",)
    other = Path(copytree(vault_build.directory, tmp_path / "other"))
    with (other / TOKENIZER).open("a") as tokenizer:
        tokenizer.write("\n")
    assert vault_grid(Build.open(other), tasks=None).options.tasks == DEFAULT_TASKS


def test_every_system_answers_every_request_once(
    together: list[Outcome], vault_build: Build
) -> None:
    grid = vault_grid(vault_build, **CHOICES, policies=POLICIES)
    assert len(together) == grid.records == len({one.key for one in together}) == 4 * 3 * 2 * 3
    expected = defaultdict(set)
    for one in together:
        expected[one.seed].add(one.expected)
    assert all(len(answers) == 1 for answers in expected.values())  # one question for all


@pytest.mark.parametrize("policy", POLICIES)
def test_sharing_a_prompt_cache_changes_no_answer(
    vault_build: Build, together: list[Outcome], policy: str
) -> None:
    alone = outcomes(vault_build, policies=(policy,))
    apart = {one.key[2:]: one for one in alone}
    shared = {one.key[2:]: one for one in together if one.system == policy}
    assert apart.keys() == shared.keys()
    for key, one in shared.items():
        if one.mode != "late":  # how much text lies in between depends on the largest ring
            assert (one.text, one.score) == (apart[key].text, apart[key].score)


def mean(answers: list[Outcome], policy: str, mode: str) -> float:
    scores = [one.score for one in answers if (one.system, one.mode) == (policy, mode)]
    return float(np.mean(scores))


def test_snapstream_answers_what_streaming_has_lost(together: list[Outcome]) -> None:
    for mode in ("aware", "late"):
        assert mean(together, "full", mode) > 0.8
        assert mean(together, "snapstream", mode) > 0.6
        assert mean(together, "streaming", mode) < 0.3
    assert mean(together, "full", "agnostic") > 0.8


def test_prompts_in_blocks_answer_a_question_at_their_end(
    vault_build: Build, together: list[Outcome]
) -> None:
    in_blocks = "snapstream:prefill=blocks"
    blocks = outcomes(vault_build, policies=(in_blocks, "streaming:prefill=blocks"))
    assert mean(blocks, in_blocks, "aware") >= mean(together, "snapstream", "aware") - 0.2
    assert mean(blocks, "streaming:prefill=blocks", "aware") < 0.3


def test_the_first_token_is_right_even_when_the_cache_lost_the_answer(
    together: list[Outcome],
) -> None:
    aware = [one for one in together if (one.system, one.mode) == ("streaming", "aware")]
    assert sum(one.first for one in aware) > sum(one.rest for one in aware)


def kept(grid: Grid, mode: str, build: Build) -> list[list[np.ndarray]]:
    """Kept positions by layer, of one context with each of three questions."""
    cells = grid.requests.cells()
    sample = grid.requests.sample(cells[0])
    found = []
    with loading(build, grid.options) as loaded:
        (llm,) = loaded.load(grid.systems)
        for other in cells[:3]:
            question = grid.requests.sample(other).question_ids
            request = grid.requests.request(sample, cells[0], mode)
            if mode == "aware":
                prompt, later = sample.context_ids + question, None
            else:
                assert request.prompt == sample.context_ids
                prompt, later = request.prompt, [question]
            llm.generate([prompt], SamplingParams(max_tokens=4), later)
            found.append(llm.executor.topk_positions() or [])
    return found


def test_agnostic_mode_keeps_the_same_positions_for_any_question(vault_build: Build) -> None:
    grid = vault_grid(vault_build, **CHOICES, policies=("snapstream",))
    first, *rest = kept(grid, "agnostic", vault_build)
    for other in rest:
        for pair in zip(first, other, strict=True):
            np.testing.assert_array_equal(*pair)


def test_aware_mode_keeps_the_positions_of_the_answer(vault_build: Build) -> None:
    grid = vault_grid(vault_build, **CHOICES, policies=("snapstream",))
    first, *rest = kept(grid, "aware", vault_build)
    assert all(any((a != b).any() for a, b in zip(first, other, strict=True)) for other in rest)


def test_late_mode_repeats_the_question_after_the_ring_was_overwritten(vault_build: Build) -> None:
    grid = vault_grid(vault_build, **CHOICES, policies=POLICIES, budgets=(32, 100))
    ring = max(layer.L_recent for one in grid.systems for layer in one.geometry.layers)
    assert ring == 96  # streaming's, beside 4 sinks
    for cell in grid.requests.cells():
        sample = grid.requests.sample(cell)
        aware = grid.requests.request(sample, cell, "aware")
        late = grid.requests.request(sample, cell, "late")
        assert late.prompt == aware.prompt == sample.context_ids + sample.question_ids
        answered, question_length = len(sample.reference_ids), len(sample.question_ids)
        assert late.continuation[:answered] == sample.reference_ids
        assert late.continuation[-question_length:] == sample.question_ids
        other_text = late.continuation[answered + 1 : -question_length]
        assert len(other_text) > ring
        text = grid.requests.tokenizer.decode(list(other_text))
        assert not any(word in text.split() for word in sample.reference.split())
