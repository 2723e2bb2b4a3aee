"""Outputs that are compressed as they grow: as turns, whatever else runs."""

from typing import Any

import pytest
import torch

from snapexport import LLM, SamplingParams
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.runtime.requests.traffic import assert_neighbours_change_nothing

torch.set_num_threads(1)

CASE = Case(extend=True, batch=3, decode_batches=(1, 3))
SEVERAL = Case(extend=True, batch=3, tokens_per_step=4)
EVERY = 10


def llm(case: Case = CASE, **options: Any) -> LLM:
    return LLM(cases.built(case).directory, threads=1, **options)


def in_turns(prompt: list[int], count: int, case: Case) -> list[int]:
    """The same by hand: each answer of EVERY tokens is the beginning of the next turn's text."""
    model, text = llm(case, parked_rows=1), list(prompt)
    while len(text) < len(prompt) + count:
        rest = min(EVERY, len(prompt) + count - len(text))
        (turn,) = model.generate([text], SamplingParams(max_tokens=rest, ignore_eos=True))
        text += turn.token_ids
    return text[len(prompt) :]


@pytest.mark.parametrize("case", [CASE, SEVERAL, Case("deepseek-v3", extend=True)], ids=str)
@pytest.mark.parametrize("length", [9, 77])
def test_an_output_is_compressed_as_turns_are(case: Case, length: int) -> None:
    prompt = list(cases.prompt(length))
    params = SamplingParams(max_tokens=47, ignore_eos=True)
    (answer,) = llm(case, compress_every=EVERY).generate([prompt], params)
    assert list(answer.token_ids) == in_turns(prompt, 47, case)
    (other,) = llm(case).generate([prompt], params)
    assert other.token_ids != answer.token_ids, "the test's output has to depend on what is kept"


@pytest.mark.parametrize("family", ["gpt2", pytest.param("opt", marks=pytest.mark.slow)])
def test_a_table_of_positions_is_not_read_beyond_its_end(family: str) -> None:
    case = Case(family, extend=True)
    last = Build.open(cases.built(case).directory).manifest.model.max_position_embeddings
    prompt = list(cases.prompt(last - 8))
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    (answer,) = llm(case, compress_every=2).generate([prompt], params)
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 9)


@pytest.mark.parametrize("prefill", ["chunks", "blocks"])
def test_neighbours_do_not_change_a_compressed_output(prefill: str) -> None:
    busy, alone = (llm(compress_every=4, prefill=prefill) for _ in range(2))
    assert_neighbours_change_nothing(busy, alone, 40)


def test_drafts_do_not_change_a_compressed_output() -> None:
    prompt = [7, 8, 9] * 20
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    with_drafts, without = (
        llm(SEVERAL, compress_every=EVERY, speculates=speculates).generate([prompt], params)[0]
        for speculates in (True, False)
    )
    assert with_drafts.token_ids == without.token_ids


def test_a_request_that_is_cancelled_during_its_extension_frees_its_slot() -> None:
    model = llm(compress_every=4)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    first = model.submit([5] * 40, params)
    while not model._loop.scheduler._extended:
        model.step()
        model._loop._extend_rows()
    model.cancel(first)
    assert model.slots_used == 0
    assert model.generate([[5] * 40], params)[0].finish_reason == "length"


def test_tokens_of_a_continuation_are_compressed_too() -> None:
    prompt, more = list(cases.prompt(60)), list(cases.prompt(31, 1))
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    (answer,) = llm(compress_every=10).generate([prompt], params, [more])
    model = llm(parked_rows=1)
    text = list(prompt)
    model.generate([text], SamplingParams(max_tokens=1))
    for end in (10, 20):  # the row of the third turn is for longer prompts alone
        model.generate([prompt + more[:end]], SamplingParams(max_tokens=1))
    (expected,) = model.generate([prompt + more[:30]], params, [more[30:]])
    assert answer.token_ids == expected.token_ids


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        (Case(batch=2), {"compress_every": 1}, "has no extend.onnx"),
        (CASE, {"compress_every": -1}, "compress_every -1"),
        (CASE, {"compress_every": True}, "compress_every True"),
    ],
    ids=str,
)
def test_outputs_that_cannot_be_compressed_are_refused(
    case: Case, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        llm(case, **options)
