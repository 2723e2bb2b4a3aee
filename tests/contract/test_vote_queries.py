"""Pseudo tokens and repeated prompts: what neighbours, shared caches and short prompts change."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from snapexport.builder import BuildOptions
from snapexport.contract.pieces import pieces_of
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.prompts import PromptTooLongError
from tests.measure.eval.test_systems import model
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.voting import GREEDY, PLAIN, PSEUDO, REPEAT, build_of, decoded, kept, opened

torch.set_num_threads(1)

BOTH = pytest.mark.parametrize("case", [PSEUDO, REPEAT], ids=lambda case: case.vote_queries)


@BOTH
def test_other_queries_change_what_is_kept_and_not_the_first_token(case: Case) -> None:
    prompt = cases.prompt(64)
    plain, own = opened(PLAIN), opened(case)
    first = plain.prefill_prompt(0, prompt).logits.copy()
    assert np.array_equal(own.prefill_prompt(0, prompt).logits, first)
    assert any(not np.array_equal(*pair) for pair in zip(kept(plain), kept(own), strict=True))


@BOTH
@pytest.mark.parametrize("length", [1, 20, 32])
def test_prompt_that_the_cache_holds_whole_is_voted_on_by_nobody_else(
    case: Case, length: int
) -> None:
    prompt, outputs = cases.prompt(length), []
    for one in PLAIN, case:
        executor = opened(one)
        work = pieces_of(length, executor.limits.prefill)
        assert not any(piece.only_votes for piece in work)
        first = executor.prefill_prompt(0, prompt).logits.copy()
        outputs.append([first, *decoded(executor, 0, length, [5, 6, 7])])
    assert np.array_equal(*outputs)


@BOTH
@pytest.mark.parametrize(
    "options", [{}, {"tokens_per_step": 4, "baseline": False}, {"top_tokens": 16}]
)
def test_outputs_do_not_depend_on_neighbours(case: Case, options: dict[str, object]) -> None:
    """Prompts are prefilled, and repeated, while others decode, in a batch of three."""
    build = build_of(replace(case, **options))
    longest = build.manifest.geometry.longest_prompt
    lengths = (40, longest, 20, 57, longest, 33)
    prompts = [cases.prompt(length, seed) for seed, length in enumerate(lengths)]
    llm = LLM(build.directory, threads=1, max_num_batched_tokens=5)
    together, alone = llm.generate(prompts, GREEDY), LLM(build.directory, threads=1)
    for prompt, found in zip(prompts, together, strict=True):
        assert alone.generate([prompt], GREEDY)[0].token_ids == found.token_ids


@BOTH
def test_same_prompt_again_keeps_the_same(case: Case) -> None:
    """Also behind another executor's run of it, in the prompt cache that both share."""
    prompt, longer = cases.prompt(57), (*cases.prompt(57), 9, 8)
    plain, fresh = opened(PLAIN), opened(case)
    sharing = open_executor(build_of(case), threads=1, prompt_cache=plain.prompt_cache)
    fresh.prefill_prompt(0, prompt)
    want = kept(fresh)
    logits = plain.prefill_prompt(0, prompt).logits.copy()
    for between in (), cases.prompt(60, 1):
        for executor in sharing, fresh:
            if between:
                executor.prefill_prompt(0, between)
            executor.prefill_prompt(1, prompt)
            for pair in zip(kept(executor), want, strict=True):
                assert np.array_equal(*pair)
    assert np.array_equal(plain.prefill_prompt(0, prompt).logits, logits)
    after = opened(PLAIN).prefill_prompt(0, longer).logits
    assert np.array_equal(plain.prefill_prompt(0, longer).logits, after)


@BOTH
def test_prompt_that_leaves_no_room_for_what_votes_is_refused(case: Case) -> None:
    build = build_of(case)
    llm, most = LLM(build.directory, threads=1), build.manifest.geometry.longest_prompt
    llm.generate([cases.prompt(most)], GREEDY)
    message = f"a prompt has {most + 1} tokens, the build takes {most}"
    with pytest.raises(PromptTooLongError, match=message):
        llm.generate([cases.prompt(most + 1)], GREEDY)


@pytest.mark.parametrize(("L_max", "budget", "ring"), [(2048, 516, 128), (32768, 8196, 655)])
def test_a_repeated_prompt_votes_for_all_but_a_short_ring(
    L_max: int, budget: int, ring: int
) -> None:
    asked = {"L_max": L_max, "kv_budget": budget, "vote_queries": "repeat", "prefill_chunk": 256}
    facts = model().model_copy(update={"max_position_embeddings": L_max})
    geometry = BuildOptions.of(model="m", out=Path("o"), **asked).geometry(facts)
    assert {(one.L_recent, one.cache_slots) for one in geometry.layers} == {(ring, budget)}
    assert geometry.vote.pool_kernel == 1
