"""Pseudo tokens vote: positions and logits agree with transformers, fed with the same tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from snapexport.cli.app import main
from snapexport.errors import UserError
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.engine.takers.pseudo_tokens import PseudoTokens
from tests.oracle import cases, masked, pseudo
from tests.oracle.cases import Case
from tests.voting import PLAIN, PSEUDO, STEPS, assert_agrees, build_of, decoded, kept, opened

torch.set_num_threads(1)

LENGTHS = 33, 57, 88
"""One position more than the cache has slots, behind a chunk, and the longest: L_max less W."""

CASES = {
    "default": PSEUDO,
    "causal softmax": replace(PSEUDO, softmax="causal", group="max"),
    "pseudo tokens of a whole chunk": replace(PSEUDO, L_obs=16, prefill_chunk=16),
    "one pseudo token": Case(policy="sage", L_obs=1, pool_kernel=1, vote_queries="pseudo"),
    "sliding layers": Case("qwen3-sliding", prefill_chunk=23, vote_queries="pseudo"),
    "latent attention": Case("deepseek-v3", vote_queries="pseudo"),
    "top tokens": Case(top_tokens=16, vote_queries="pseudo"),
    "several tokens a step": Case(tokens_per_step=4, vote_queries="pseudo"),
    "portable": Case(target="portable", vote_queries="pseudo"),
}


def expected(case: Case, length: int) -> tuple[tuple[int, ...], pseudo.PseudoRun]:
    """A prompt of that length on which rounding decides nothing, and its run."""
    for seed in range(100):
        prompt = cases.prompt(length, seed)
        where = cases.checkpoint(case.checkpoint)
        first = masked.run(where, prompt, case.geometry, case.L_obs)
        if first.is_clear:
            tokens = first.tokens[: case.L_obs]
            run = pseudo.run(where, prompt, tokens, case.geometry, STEPS)
            if run.is_clear:
                return prompt, run
    raise AssertionError("no clear prompt")


@pytest.mark.parametrize("name", CASES)
def test_kept_positions_and_logits_are_those_of_transformers(name: str) -> None:
    case = CASES[name]
    executor = opened(case)
    for slot, most in enumerate(LENGTHS):
        length = min(most, case.geometry.longest_prompt)
        prompt, want = expected(case, length)
        assert_agrees(executor, slot, prompt, want)


def test_int8_cache_votes_by_the_tokens_that_it_would_have_said() -> None:
    case = Case(cache_dtype="int8", vote_queries="pseudo")
    prompt, executor = cases.prompt(57), opened(case)
    limits = executor.limits
    executor.limits = replace(limits, prefill=replace(limits.prefill, passes=()))
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


def test_prompts_own_queries_stand_where_logits_are_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "snapexport.runtime.engine.takers.pseudo_tokens.can_sample", lambda _: False
    )
    plain, own = opened(PLAIN), opened(PSEUDO)
    for executor in plain, own:
        executor.prefill_prompt(0, cases.prompt(88))
    for pair in zip(kept(plain), kept(own), strict=True):
        assert np.array_equal(*pair)


def test_baseline_writes_no_pseudo_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PseudoTokens, "write", None)
    executor = open_executor(build_of(PSEUDO), threads=1, baseline=True)
    executor.prefill_prompt(0, cases.prompt(96))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "streaming"], "--policy streaming keeps no top-k, but --vote-queries"),
        (["--policy", "full"], "--policy full keeps everything, but --vote-queries"),
        (["--extend"], "--extend is not supported with --vote-queries pseudo"),
        (["--tensor-parallel", "2"], "--vote-queries pseudo is not supported with --tensor-par"),
        (["--prefill-chunk", "96"], "--vote-queries pseudo needs the prompt's full-length cache"),
        (["--L-obs", "96", "--L-recent", "96", "--K", "4"], "for which --L-max 96 leaves no room"),
    ],
)
def test_builds_that_cannot_write_pseudo_tokens_are_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--L-max", "96"] + (["--kv-budget", "32"] if flags[0] in ("--extend",) else [])
    model = str(cases.checkpoint("llama"))
    command = ["build", "--model", model, "--out", "never", *sizes, "--vote-queries", "pseudo"]
    assert main([*command, *flags]) == 2
    assert message in capsys.readouterr().err


def test_manifest_with_pseudo_tokens_of_a_single_shot_is_refused() -> None:
    geometry = replace(PSEUDO.geometry, vote_queries="pseudo")
    with pytest.raises(UserError, match="is a single shot, which has none"):
        geometry.require_chunks(geometry.L_max)
    with pytest.raises(UserError, match="no vote queries 'nobody'"):
        replace(geometry, vote_queries="nobody")
