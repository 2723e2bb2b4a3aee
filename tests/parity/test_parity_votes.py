"""Tokens after a prompt vote: kept positions and logits agree with transformers, fed with the same.

They are pseudo tokens, or the prompt once more.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from snapexport.cli.app import main
from snapexport.compare.loop import Loop
from snapexport.contract.exclusions import require_compatible
from snapexport.contract.pieces import CHUNK, pieces_of
from snapexport.errors import UserError
from snapexport.methods.repeat.spec import OVERLAP, repeated_chunk, repeated_starts
from snapexport.methods.table import voter_of
from snapexport.runtime.engine.bound_graph import Prediction
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.llm import LLM
from tests.oracle import cases, masked, pseudo
from tests.oracle.cases import LOGITS, Case
from tests.oracle.masked import OracleRun
from tests.voting import (
    GREEDY,
    PLAIN,
    PSEUDO,
    REPEAT,
    STEPS,
    assert_agrees,
    build_of,
    decoded,
    kept,
    opened,
)

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

LENGTHS = 33, 57
"""One position more than the cache has slots, and after a chunk. The longest prompt is added."""

BLOCKS = {"L_obs": 100, "prefill_chunk": 100, "L_max": 210}
CASES = {
    "pseudo": PSEUDO,
    "pseudo, causal softmax": replace(PSEUDO, softmax="causal", group="max"),
    "pseudo, a whole chunk": replace(PSEUDO, L_obs=16, prefill_chunk=16),
    "pseudo, one token": Case(policy="sage", L_obs=1, pool_kernel=1, vote_queries="pseudo"),
    "pseudo, sliding layers": Case("qwen3-sliding", prefill_chunk=23, vote_queries="pseudo"),
    "pseudo, latent attention": Case("deepseek-v3", vote_queries="pseudo"),
    "pseudo, top tokens": Case(top_tokens=16, vote_queries="pseudo"),
    "pseudo, several tokens a step": Case(tokens_per_step=4, vote_queries="pseudo"),
    "pseudo, portable": Case(target="portable", vote_queries="pseudo"),
    "repeat": REPEAT,
    "repeat, highest of the neighbours": replace(REPEAT, pool="max"),
    "repeat, prompt shorter than a chunk": replace(REPEAT, L_obs=40, prefill_chunk=40, L_max=104),
    "repeat, rows in several blocks": replace(REPEAT, **BLOCKS),
    "repeat, sliding layers": replace(REPEAT, checkpoint="qwen3-sliding"),
    "repeat, soft-capped scores": replace(REPEAT, checkpoint="gemma2"),
    "repeat, latent attention": replace(REPEAT, checkpoint="deepseek-v3"),
    "repeat, latents in several blocks": replace(REPEAT, checkpoint="deepseek-v3", **BLOCKS),
    "repeat, top tokens": replace(REPEAT, top_tokens=16),
    "repeat, several tokens a step": replace(REPEAT, tokens_per_step=4, baseline=False),
    "repeat, portable": replace(REPEAT, target="portable"),
    "repeat, int8 cache": replace(REPEAT, cache_dtype="int8"),
}


def voted_on(case: Case, prompt: tuple[int, ...]) -> OracleRun | None:
    """The oracle's run; None where rounding decides which pseudo tokens it has."""
    where = cases.checkpoint(case.checkpoint)
    if case.vote_queries == "repeat":
        starts = repeated_starts(len(prompt), case.prefill_chunk)
        chunks = [repeated_chunk(prompt, case.prefill_chunk, start) for start in starts]
        return pseudo.run_repeated(where, prompt, chunks, case.geometry, STEPS)
    first = masked.run(where, prompt, case.geometry, case.L_obs)
    if not first.is_clear:
        return None
    return pseudo.run(where, prompt, first.tokens[: case.L_obs], case.geometry, STEPS)


def expected(case: Case, length: int) -> tuple[tuple[int, ...], OracleRun]:
    """A prompt of that length on which rounding decides nothing, and its run."""
    for seed in range(100):
        prompt = cases.prompt(length, seed)
        if (run := voted_on(case, prompt)) and run.is_clear:
            return prompt, run
    raise AssertionError("no clear prompt")


@pytest.mark.parametrize("name", CASES)
def test_kept_positions_and_logits_are_those_of_transformers(name: str) -> None:
    case = CASES[name]
    executor, longest = opened(case), case.geometry.longest_prompt
    decodes = case.vote_queries == "pseudo" or not case.cache_dtype
    for slot, length in enumerate((*LENGTHS, longest)):
        prompt, want = expected(case, min(length, longest))
        assert_agrees(executor, slot, prompt, want, decodes=decodes)


def test_int8_cache_votes_by_the_tokens_that_it_would_have_said() -> None:
    case = Case(cache_dtype="int8", vote_queries="pseudo")
    prompt, executor = cases.prompt(57), opened(case)
    limits = executor.limits
    executor.limits = replace(limits, prefill=replace(limits.prefill, further=()))
    said = [int(executor.prefill_prompt(0, prompt).logits.argmax())]
    for _ in range(case.L_obs - 1):
        (row,) = decoded(executor, 0, len(prompt) + len(said) - 1, said[-1:], len(prompt))
        said.append(int(row.argmax()))
    executor.limits = limits
    executor.prefill_prompt(0, prompt)
    want = pseudo.run(cases.checkpoint(case.checkpoint), prompt, said, case.geometry, 0)
    assert want.is_clear
    for found, positions in zip(kept(executor), want.topk_positions, strict=True):
        assert np.array_equal(found, positions)


def test_prompts_own_queries_vote_where_logits_are_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Prediction, "is_finite", False)
    plain, own = opened(PLAIN), opened(PSEUDO)
    for executor in plain, own:
        executor.prefill_prompt(0, cases.prompt(88))
    for pair in zip(kept(plain), kept(own), strict=True):
        assert np.array_equal(*pair)


@pytest.mark.parametrize("case", [PSEUDO, REPEAT], ids=lambda case: case.vote_queries)
def test_baseline_runs_nothing_after_a_prompt(case: Case) -> None:
    """Its prompt of L_max tokens leaves no room for any."""
    executor = open_executor(build_of(case), threads=1, baseline=True)
    executor.prefill_prompt(0, cases.prompt(96))
    assert {piece.kind for piece in pieces_of(96, executor.limits.prefill)} == {CHUNK}


@pytest.mark.parametrize("length", [1, 5, 16, 17, 40, 100, 101])
@pytest.mark.parametrize("chunk", [1, 2, 16, 40])
def test_repeated_chunks_cover_the_prompt_and_begin_again_in_the_one_before(
    length: int, chunk: int
) -> None:
    prompt, starts = list(range(length)), repeated_starts(length, chunk)
    pieces = [repeated_chunk(prompt, chunk, start) for start in starts]
    assert {len(piece) for piece in pieces} == {chunk}
    assert set().union(*pieces) == set(prompt)
    assert pieces[-1] == (prompt * chunk)[-chunk:] or length < chunk
    overlaps = [before[-1] + 1 - after[0] for before, after in pairwise(pieces)]
    assert min(overlaps, default=chunk // 2) >= min(OVERLAP, chunk // 2)


def test_request_that_leaves_during_the_repetition_changes_no_other() -> None:
    directory = build_of(REPEAT).directory
    first, second = cases.prompt(64), cases.prompt(57, 1)
    want = LLM(directory, threads=1).generate([second], GREEDY)[0].token_ids
    llm = LLM(directory, threads=1)
    left = llm.submit(first, GREEDY)
    for _ in range(3):  # two chunks of the prompt, and one of its repetition
        llm.step()
    llm.cancel(left)
    assert llm.generate([second], GREEDY)[0].token_ids == want


@pytest.mark.parametrize(
    ("queries", "flags", "message"),
    [
        ("pseudo", "--prefill-chunk 96", "keeps no full-length cache of the prompt"),
        ("pseudo", "--L-obs 96 --L-recent 96 --K 4", "for which --L-max 96 leaves no room"),
        ("repeat", "--prefill-chunk 96", "for which --L-max 96 leaves no room"),
        ("repeat", "--L-obs 8", "--L-obs 8 is not supported with --vote-queries repeat"),
    ],
)
def test_builds_without_room_for_what_votes_after_a_prompt_are_refused(
    queries: str, flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """tests/house/test_combinations.py holds what --vote-queries excludes, flag by flag."""
    model = str(cases.checkpoint("llama"))
    command = ["build", "--model", model, "--out", "never", "--L-max", "96"]
    assert main([*command, "--vote-queries", queries, *flags.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("case", "chunk", "message"),
    [
        (PSEUDO, PSEUDO.L_max, "is not supported with a prefill chunk of L_max"),
        (REPEAT, 16, "is not supported with a prefill chunk of 16 for --L-obs"),
    ],
)
def test_manifest_whose_chunks_do_not_fit_the_vote_is_refused(
    case: Case, chunk: int, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        require_compatible(case.geometry.chunk_facts(chunk))


def test_manifest_with_unknown_vote_queries_is_refused() -> None:
    with pytest.raises(UserError, match="no vote queries 'nobody'"):
        voter_of("nobody")


@pytest.mark.parametrize("length", [20, 57])
def test_diff_runs_the_repetition_as_the_runtime_does(length: int) -> None:
    tokens = np.array(cases.prompt(length + 4))
    executor = opened(REPEAT)
    want = [executor.prefill_prompt(0, tokens[:length].tolist()).logits.copy()]
    want += decoded(executor, 0, length, tokens[length:].tolist())
    with Loop(build_of(REPEAT)) as backend:
        found = backend.logits(tokens, length)
    assert np.abs(found - np.stack(want)).max() <= LOGITS
