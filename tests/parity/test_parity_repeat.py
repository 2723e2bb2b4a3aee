"""A repeated prompt votes: kept positions and logits are those of transformers, fed alike."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from snapexport.cli.app import main
from snapexport.errors import UserError
from snapexport.measure.accuracy.graph_runner import GraphRunner
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.engine.takers.repetition import repeated_chunk
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.pieces import OVERLAP, pieces_of, repeated_starts
from tests.oracle import cases, pseudo
from tests.oracle.cases import LOGITS, Case
from tests.voting import (
    GREEDY,
    REPEAT,
    STEPS,
    assert_agrees,
    build_of,
    decoded,
    opened,
)

torch.set_num_threads(1)

LENGTHS = 33, 57, 64
"""One position more than the cache has slots, several chunks, and the longest: L_max less C."""

CASES = {
    "default": REPEAT,
    "highest of the neighbours": replace(REPEAT, pool="max"),
    "prompt shorter than a chunk": replace(REPEAT, L_obs=40, prefill_chunk=40, L_max=104),
    "rows in several blocks": replace(REPEAT, L_obs=100, prefill_chunk=100, L_max=210),
    "sliding layers": replace(REPEAT, checkpoint="qwen3-sliding"),
    "soft-capped scores": replace(REPEAT, checkpoint="gemma2"),
    "latent attention": replace(REPEAT, checkpoint="deepseek-v3"),
    "latent attention, rows in several blocks": replace(
        REPEAT, checkpoint="deepseek-v3", L_obs=100, prefill_chunk=100, L_max=210
    ),
    "top tokens": replace(REPEAT, top_tokens=16),
    "several tokens a step": replace(REPEAT, tokens_per_step=4, baseline=False),
    "portable": replace(REPEAT, target="portable"),
    "int8 cache": replace(REPEAT, cache_dtype="int8"),
}


def chunks(prompt: tuple[int, ...], chunk: int) -> list[list[int]]:
    starts = repeated_starts(len(prompt), chunk)
    return [repeated_chunk(prompt, chunk, start) for start in starts]


def expected(case: Case, length: int) -> tuple[tuple[int, ...], pseudo.PseudoRun]:
    """A prompt of that length on which rounding decides nothing, and its run."""
    where = cases.checkpoint(case.checkpoint)
    for seed in range(100):
        prompt = cases.prompt(length, seed)
        repeated = chunks(prompt, case.prefill_chunk)
        run = pseudo.run_repeated(where, prompt, repeated, case.geometry, STEPS)
        if run.is_clear:
            return prompt, run
    raise AssertionError("no clear prompt")


@pytest.mark.parametrize("name", CASES)
def test_kept_positions_and_logits_are_those_of_transformers(name: str) -> None:
    case = CASES[name]
    executor = opened(case)
    for slot, most in enumerate(LENGTHS):
        length = case.geometry.longest_prompt if most == LENGTHS[-1] else most
        prompt, want = expected(case, length)
        assert_agrees(executor, slot, prompt, want, decodes=not case.cache_dtype)


@pytest.mark.parametrize("length", [1, 5, 16, 17, 40, 100, 101])
@pytest.mark.parametrize("chunk", [1, 2, 16, 40])
def test_repeated_chunks_cover_the_prompt_and_begin_again_in_the_one_before(
    length: int, chunk: int
) -> None:
    prompt, starts = list(range(length)), repeated_starts(length, chunk)
    pieces = [repeated_chunk(prompt, chunk, index) for index in range(len(starts))]
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


def test_baseline_repeats_nothing() -> None:
    executor = open_executor(build_of(REPEAT), threads=1, baseline=True)
    executor.prefill_prompt(0, cases.prompt(96))
    assert {piece.kind for piece in pieces_of(96, executor.limits.prefill)} == {"chunk"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "streaming"], "--policy streaming keeps no top-k, but --vote-queries"),
        (["--policy", "sage"], "--policy sage lets the last token vote"),
        (["--extend"], "--extend is not supported with --vote-queries repeat"),
        (["--tensor-parallel", "2"], "--vote-queries repeat is not supported with --tensor-par"),
        (["--prefill-chunk", "96"], "for which --L-max 96 leaves no room"),
        (["--L-obs", "8"], "--L-obs is not used with --vote-queries repeat"),
        (["--vote", "sum"], "--vote is not used with --vote-queries repeat"),
        (["--softmax", "causal"], "--softmax is not used with --vote-queries repeat"),
        (["--group", "max"], "--group is not used with --vote-queries repeat"),
    ],
)
def test_builds_that_cannot_repeat_a_prompt_are_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--L-max", "96"] + (["--kv-budget", "32"] if flags[0] in ("--extend",) else [])
    model = str(cases.checkpoint("llama"))
    command = ["build", "--model", model, "--out", "never", *sizes, "--vote-queries", "repeat"]
    assert main([*command, *flags]) == 2
    assert message in capsys.readouterr().err


def test_manifest_with_a_repetition_in_other_chunks_is_refused() -> None:
    with pytest.raises(UserError, match="lets all tokens of a prefill chunk vote: 16"):
        REPEAT.geometry.require_chunks(16)


@pytest.mark.parametrize("length", [20, 57])
def test_diff_runs_the_repetition_as_the_runtime_does(length: int) -> None:
    tokens = np.array(cases.prompt(length + 4))
    executor = opened(REPEAT)
    want = [executor.prefill_prompt(0, tokens[:length].tolist()).logits.copy()]
    want += decoded(executor, 0, length, tokens[length:].tolist())
    with GraphRunner(build_of(REPEAT)) as backend:
        found = backend.logits(tokens, length)
    assert np.abs(found - np.stack(want)).max() <= LOGITS
