"""Rows with recurrent states: parked, extended, compressed again, and kept in files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport import LLM, SamplingParams
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.oracle.recurrent import in_turns
from tests.runtime.requests.traffic import assert_neighbours_change_nothing

CASE = Case("falcon_h1", extend=True, decode_batches=(1, 3))
STEPS = 6
GREEDY = SamplingParams(max_tokens=STEPS, ignore_eos=True)


def llm(case: Case = CASE, **options: Any) -> LLM:
    return LLM(cases.built(case).directory, threads=1, **options)


def expected(
    lengths: tuple[int, ...], voters: tuple[int, ...] = ()
) -> tuple[list[list[int]], list[int]]:
    """Turns of these lengths, and the greedy tokens behind the last, by transformers."""
    geometry = cases.build_of(CASE).manifest.geometry
    found = in_turns(CASE.checkpoint, lengths, geometry, voters)
    return [list(turn) for turn in found.turns], list(found.tokens)


def joined(turns: list[list[int]]) -> list[int]:
    return [token for turn in turns for token in turn]


def test_turns_of_two_conversations_agree_with_transformers() -> None:
    """Beside a third one, which is cancelled amid its blocks: the rows pass through one memory."""
    talks = expected((90, 32, 7)), expected((40, 5, 30))
    model, outputs, third = llm(parked_rows=4), [], list(cases.prompt(60))
    model.generate([third], GREEDY)
    for turn in range(3):
        left = model.submit(third + [5] * 90, GREEDY)
        model.step()
        model.cancel(left)
        prompts = [joined(ids[: turn + 1]) for ids, _ in talks]
        outputs = model.generate(prompts, GREEDY)
    assert [list(one.token_ids) for one in outputs] == [tokens for _, tokens in talks]


def test_a_prompt_in_blocks_agrees_with_transformers() -> None:
    ids, tokens = expected((24, 24, 24, 24, 23, 31), (8, 8, 8, 8, 8, 0))
    (answer,) = llm(prefill="blocks").generate([joined(ids)], GREEDY)
    assert list(answer.token_ids) == tokens


def test_a_row_that_is_parked_before_the_prompts_end_has_the_states_of_that_place() -> None:
    (first, tail), tokens = expected((70, 3))
    (_, other), following = expected((70, 9))
    model = llm(parked_rows=1)
    deltas = list(model.stream(replace(model.read(first + tail, GREEDY), park_at=len(first))))
    assert [token for delta in deltas for token in delta.token_ids] == tokens
    deltas = list(model.stream(first + other, GREEDY))
    assert deltas[0].cached_tokens == len(first)
    assert [token for delta in deltas for token in delta.token_ids] == following


def test_a_row_in_a_file_goes_on_in_another_process(tmp_path: Path) -> None:
    (first, second), tokens = expected((80, 12))
    before = llm(parked_rows=1, parked_dir=tmp_path)
    before.generate([first], GREEDY)
    before.close()
    (path,) = tmp_path.rglob("*.npz")
    with np.load(path) as file:
        states = [name for name in file if name.endswith((".conv", ".matrix"))]
        assert all(file[name].any() for name in states) and len(states) == 2 * 3
    after = llm(parked_rows=1, parked_dir=tmp_path)
    deltas = list(after.stream(first + second, GREEDY))
    assert deltas[0].cached_tokens == len(first)
    assert [token for delta in deltas for token in delta.token_ids] == tokens


def test_an_output_is_compressed_as_turns_are() -> None:
    prompt, every = list(cases.prompt(77)), 10
    params = SamplingParams(max_tokens=3 * every, ignore_eos=True)
    (answer,) = llm(compress_every=every).generate([prompt], params)
    by_hand, text = llm(parked_rows=1), list(prompt)
    for _ in range(3):
        part = SamplingParams(max_tokens=every, ignore_eos=True)
        text += by_hand.generate([text], part)[0].token_ids
    assert list(answer.token_ids) == text[len(prompt) :]


@pytest.mark.parametrize("prefill", ["chunks", "blocks"])
def test_neighbours_that_come_move_and_leave_change_no_state(prefill: str) -> None:
    busy, alone = (llm(compress_every=4, prefill=prefill) for _ in range(2))
    assert_neighbours_change_nothing(busy, alone, 30)
