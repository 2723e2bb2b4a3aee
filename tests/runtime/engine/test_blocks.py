"""Prompts that go block by block, and turns onto parked rows, answer as transformers does."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snapexport import LLM, SamplingParams
from snapexport.contract.manifest import TensorSpec
from snapexport.contract.pieces import Piece, Prefill, pieces
from snapexport.errors import UserError
from snapexport.runtime.engine.rows import Row, host_buffer
from snapexport.runtime.requests.parked_rows import ParkedRow, ParkedRows
from tests.oracle import cases, turns
from tests.oracle.cases import Case
from tests.oracle.checkpoints import VOCABULARY

torch.set_num_threads(1)

CASE = Case(extend=True, batch=2)
SHORT = Case(extend=True, batch=2, short_chunks=(8, 16))
STEPS = 12
GREEDY = SamplingParams(max_tokens=STEPS + 1, ignore_eos=True)


def llm(case: Case = CASE, **options: Any) -> LLM:
    return LLM(cases.built(case).directory, threads=1, **options)


def joined(ids: list[list[int]]) -> list[int]:
    return [token for turn in ids for token in turn]


def expected(
    lengths: tuple[int, ...], case: Case = CASE, voters: tuple[int, ...] = ()
) -> tuple[list[list[int]], list[int]]:
    """Clear turns of these lengths, and the greedy tokens behind the last."""
    where = cases.checkpoint(case.checkpoint), lengths, case.geometry
    ids, want = turns.first_clear(*where, STEPS, VOCABULARY, voters)
    return ids, want.tokens


@pytest.mark.parametrize("lengths", [(20,), (32,), (21, 21, 28), (24, 24, 24, 24, 23, 31)])
@pytest.mark.parametrize("case", [CASE, SHORT, Case("deepseek-v3", extend=True)], ids=str)
def test_a_prompt_in_blocks_agrees_with_transformers(case: Case, lengths: tuple[int, ...]) -> None:
    voters = (*[case.geometry.vote.L_obs] * (len(lengths) - 1), 0)
    ids, tokens = expected(lengths, case, voters)
    (answer,) = llm(case, prefill="blocks").generate([joined(ids)], GREEDY)
    assert list(answer.token_ids) == tokens


def test_the_end_of_a_long_turn_votes_on_its_blocks() -> None:
    (first, *more), tokens = expected((90, 22, 30), CASE, (0, 8, 0))
    model = llm(parked_rows=1)
    model.generate([first], GREEDY)
    (answer,) = model.generate([first + joined(more)], GREEDY)
    assert list(answer.token_ids) == tokens


def test_a_prompt_may_be_longer_than_L_max_only_in_blocks() -> None:
    prompt = np.random.default_rng(0).integers(3, VOCABULARY, CASE.L_max + 1).tolist()
    with pytest.raises(UserError, match="takes 96") as refused:
        llm().read(prompt)
    assert "build again with --L-max " in refused.value.hint
    with pytest.raises(UserError) as refused:
        llm(prefill="blocks").read(prompt * 1000)
    assert refused.value.hint == "shorten it: no build of this model takes more"
    assert llm(prefill="blocks").generate([prompt], GREEDY)
    assert llm(parked_rows=1).generate([prompt], GREEDY)


def test_memory_of_blocks_does_not_grow_with_L_max() -> None:
    executor = llm(prefill="blocks").executor
    assert executor.prompt_cache is None
    assert "prefill" not in executor._graphs.names


def test_turns_beside_neighbours_agree_with_transformers() -> None:
    first, second = expected((90, 32, 7)), expected((40, 5, 30))
    model, outputs = llm(parked_rows=4), []
    for turn in range(3):
        prompts = [joined(ids[: turn + 1]) for ids, _ in (first, second)]
        outputs = model.generate(prompts, GREEDY)
    assert [list(one.token_ids) for one in outputs] == [first[1], second[1]]


def test_a_turn_runs_only_its_own_tokens() -> None:
    (first, second), _ = expected((90, 9))
    model = llm(parked_rows=1)
    model.generate([first], GREEDY)
    seen: list[int] = []
    request = model.read(first + second, GREEDY)
    executor, blocks = model.executor, []
    run = executor.take

    def noted(slot: int, prompt: Any, piece: Piece, *more: Any) -> Any:
        blocks.append((piece.start, piece.end))
        return run(slot, prompt, piece, *more)

    executor.take = noted  # type: ignore[method-assign]
    deltas = list(model.stream(request, on_prefill=seen.append))
    assert blocks == [(90, 99)]
    assert [delta.cached_tokens for delta in deltas] == [90] + [0] * (len(deltas) - 1)


def test_a_row_that_saves_no_chunk_is_not_used() -> None:
    model, prompt = llm(parked_rows=1), list(cases.prompt(40))
    (fresh,) = llm().generate([prompt], GREEDY)
    model.generate([prompt[:7]], GREEDY)
    deltas = list(model.stream(prompt, GREEDY))
    assert deltas[0].cached_tokens == 0
    assert tuple(token for one in deltas for token in one.token_ids) == fresh.token_ids
    model.generate([prompt[:8]], GREEDY)
    assert next(model.stream(prompt, GREEDY)).cached_tokens == 8


def test_a_cancelled_turn_leaves_the_next_as_it_was() -> None:
    ids, tokens = expected((90, 32, 32, 32))
    model = llm(parked_rows=2)
    model.generate([ids[0]], GREEDY)
    left = model.submit(ids[0] + [5] * 90, GREEDY)
    model.step()
    model.cancel(left)
    for turn in range(2, 5):
        (answer,) = model.generate([joined(ids[:turn])], GREEDY)
    assert list(answer.token_ids) == tokens


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    cancelled=st.lists(st.integers(0, 6), min_size=5, max_size=5),
    seed=st.integers(0, 1000),
)
def test_a_conversation_is_as_without_those_who_left(
    lengths: list[int], cancelled: list[int], seed: int
) -> None:
    """Beside each turn another conversation, which is cancelled after some steps."""
    random, short = np.random.default_rng(seed), SamplingParams(max_tokens=3, ignore_eos=True)
    said = [random.integers(3, VOCABULARY, length).tolist() for length in lengths]
    other = random.integers(3, VOCABULARY, 50).tolist()
    answers: list[list[tuple[int, ...]]] = []
    for has_others in (False, True):
        model, prompt = llm(parked_rows=8), list[int]()
        answers.append([])
        for turn, steps in zip(said, cancelled, strict=False):
            if has_others:
                leaves = model.submit(model.read(other[: 10 + 8 * steps], short))
                for _ in range(steps):
                    model.step()
            prompt = prompt + turn
            mine = model.submit(model.read(prompt, short))
            tokens: list[int] = []
            while model.busy:
                tokens += [
                    t for one in model.step() if one.request_id == mine for t in one.token_ids
                ]
                if has_others:
                    model.cancel(leaves)
            answers[-1].append(tuple(tokens))
            prompt = prompt + tokens
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        (Case(batch=2), {"parked_rows": 1}, "has no extend.onnx"),
        (Case(batch=2), {"prefill": "blocks"}, "has no extend.onnx"),
        (CASE, {"parked_rows": -1}, "parked_rows -1"),
        (Case(baseline=True, extend=True), {"prefill": "blocks", "baseline": True}, "full cache"),
    ],
    ids=str,
)
def test_what_cannot_be_extended_is_refused(
    case: Case, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        llm(case, **options)


def row(*token_ids: int) -> ParkedRow:
    zeros = np.zeros(3, np.float32)
    spec = TensorSpec(name="past", dtype="float32", shape=[3])
    count = len(token_ids)
    return ParkedRow(token_ids, Row("", "cpu", (host_buffer(spec, zeros),), count, count))


def found(rows: ParkedRows, *prompt: int) -> ParkedRow:
    one = rows.find(prompt)
    assert one
    return one


def test_the_longest_row_that_begins_a_prompt_is_found() -> None:
    rows = ParkedRows(4)
    for one in (row(1), row(2), row(2, 3), row(2, 3, 4)):
        rows.keep(one)
    assert found(rows, 2, 3, 4, 5).token_ids == (2, 3, 4)
    assert rows.find((2, 3, 4)) is None, "its row has nothing left to run"
    assert rows.find((3,)) is None


def test_a_turn_takes_the_place_of_the_turns_before_it() -> None:
    rows = ParkedRows(4)
    rows.keep(row(2))
    rows.keep(row(2, 3))
    assert rows.nbytes == 12
    assert rows.find((2, 9)) is None


def test_the_row_that_was_used_longest_ago_goes_first() -> None:
    rows = ParkedRows(2)
    rows.keep(row(1))
    rows.keep(row(2))
    assert rows.find((1, 1))
    rows.keep(row(3))
    assert rows.find((2, 2)) is None
    assert found(rows, 1, 1).token_ids == (1,)


@pytest.mark.parametrize("voters", [0, 1, 4])
@pytest.mark.parametrize(("done", "length"), [(0, 1), (0, 8), (0, 9), (5, 30), (0, 33), (31, 32)])
def test_blocks_follow_each_other_and_are_equally_long(done: int, length: int, voters: int) -> None:
    work = pieces(length, done, Prefill((8,), 0, voters), onto_row=True)
    blocks = [(piece.start, piece.end) for piece in work]
    assert blocks[-1][1] == length and [piece.is_last for piece in work].index(True) + 1 == len(
        work
    )
    sizes = [end - start + voters * (end < length) for start, end in blocks]
    assert [start for start, _ in blocks] == [done, *(end for _, end in blocks[:-1])]
    assert max(sizes) <= 8 and max(sizes) - min(sizes) <= 1
