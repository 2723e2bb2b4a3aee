"""Recurrent states belong to one request: neighbours, cancels, moves and rows leave them alone."""

from collections.abc import Sequence

import numpy as np
import pytest

from snapexport import LLM, SamplingParams
from snapexport.contract.pieces import pieces_of
from snapexport.runtime.engine.open_executor import open_executor
from tests.oracle import cases
from tests.oracle.cases import Case, build_of

CASE = Case("falcon_h1", extend=True, decode_batches=(1, 3))
"""Attention, a convolution and a matrix state in each layer."""
PROMPTS = [list(cases.prompt(length, length)) for length in (70, 5, 40, 33, 64)]
LENGTHS = (4, 20, 9, 16, 3)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(build_of(CASE).directory, threads=1)


def params(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, ignore_eos=True)


def alone(llm: LLM) -> list[Sequence[int]]:
    pairs = zip(PROMPTS, LENGTHS, strict=True)
    return [llm.generate([ids], params(count))[0].token_ids for ids, count in pairs]


def test_requests_of_a_batch_have_the_tokens_that_each_has_by_itself(llm: LLM) -> None:
    """Short ones end first, so that others move, and further prompts come in between."""
    together = llm.generate(PROMPTS, [params(count) for count in LENGTHS])
    assert [done.token_ids for done in together] == alone(llm)


def test_a_prompt_that_is_given_up_between_its_chunks_leaves_no_state(llm: LLM) -> None:
    expected = alone(llm)
    executor, first = open_executor(build_of(CASE), threads=1), PROMPTS[0]
    executor.take(1, first, pieces_of(len(first), executor.limits.prefill)[0])
    prediction = executor.prefill_prompt(0, PROMPTS[2])
    assert prediction.likeliest == expected[2][0]
    executor.close()


def test_a_row_goes_on_in_another_executor(llm: LLM) -> None:
    here, there = (open_executor(build_of(CASE), threads=1) for _ in range(2))
    prompt, expected = PROMPTS[2], alone(llm)[2]
    found = [here.prefill_prompt(1, prompt).likeliest]
    there.rows.copy_in(0, here.rows.copy_out(1, {}))
    for position in range(len(prompt), len(prompt) + len(expected) - 1):
        given = (np.array([value]) for value in (found[-1], position, len(prompt)))
        found.append(there.decode(*given)[0].likeliest)
    assert tuple(found) == tuple(expected)


def test_a_prompt_like_the_last_one_fills_another_slot_with_the_same_states(llm: LLM) -> None:
    executor = open_executor(build_of(CASE), threads=1)
    first, again = (executor.prefill_prompt(slot, PROMPTS[0]).logits.copy() for slot in (0, 2))
    assert np.array_equal(first, again)
    for one, other in zip(*(executor.rows.buffers(slot) for slot in (0, 2)), strict=True):
        assert np.array_equal(one.host, other.host), one.name
