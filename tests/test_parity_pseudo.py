"""Pseudo tokens vote: positions and logits agree with transformers, fed with the same tokens."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.runtime.executor import Executor
from snapexport.runtime.llm import LLM
from snapexport.runtime.open_executor import open_executor
from snapexport.runtime.prompts import PromptTooLongError
from snapexport.runtime.pseudo_tokens import PseudoTokens
from snapexport.runtime.requests import SamplingParams
from tests.oracle import cases, masked, pseudo
from tests.oracle.cases import LOGITS, Case

torch.set_num_threads(1)

STEPS = 16
PLAIN = Case(decode_batches=(1,), baseline=True)
PSEUDO = replace(PLAIN, vote_queries="pseudo")
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
GREEDY = SamplingParams(max_tokens=STEPS, ignore_eos=True)
Array = NDArray[Any]


def build_of(case: Case) -> Build:
    return Build.open(cases.built(case).directory)


def opened(case: Case) -> Executor:
    return open_executor(build_of(case), threads=1)


def kept(executor: Executor) -> list[Array]:
    found = executor.topk_positions()
    assert found is not None
    return found


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


def decoded(
    executor: Executor, slot: int, first: int, tokens: list[int], length: int = 0
) -> list[Array]:
    """Logits of steps that are fed with `tokens`, the first one at position `first`.

    The slots before it are idle. length: of the prompt, if it is not `first`.
    """
    rows = []
    for step, token in enumerate(tokens):
        fed = np.zeros((3, slot + 1), np.int64)
        fed[:, slot] = token, first + step, length or first
        rows.append(executor.decode(*fed)[slot].logits.copy())
    return rows


@pytest.mark.parametrize("name", CASES)
def test_kept_positions_and_logits_are_those_of_transformers(name: str) -> None:
    case = CASES[name]
    executor = opened(case)
    for slot, most in enumerate(LENGTHS):
        length = min(most, case.geometry.longest_prompt)
        prompt, want = expected(case, length)
        prefilled = executor.prefill_prompt(slot, prompt).logits
        assert np.abs(prefilled - want.logits[0]).max() <= LOGITS
        for layer, found in enumerate(kept(executor)):
            assert np.array_equal(found, want.topk_positions[layer]), f"{length}, layer {layer}"
        rows = decoded(executor, slot, length, want.tokens[:-1])
        assert max(np.abs(rows - want.logits[1:]).max(-1)) <= LOGITS, length


def test_pseudo_tokens_change_what_is_kept() -> None:
    prompt = cases.prompt(88)
    plain, own = opened(PLAIN), opened(PSEUDO)
    first = plain.prefill_prompt(0, prompt).logits.copy()
    assert np.array_equal(own.prefill_prompt(0, prompt).logits, first)
    assert any(not np.array_equal(*pair) for pair in zip(kept(plain), kept(own), strict=True))


def test_int8_cache_votes_by_the_tokens_that_it_would_have_said() -> None:
    case = Case(cache_dtype="int8", vote_queries="pseudo")
    prompt, executor = cases.prompt(57), opened(case)
    limits = executor.limits
    executor.limits = replace(limits, pseudo_tokens=0)
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


@pytest.mark.parametrize("length", [1, 20, 32])
def test_prompt_that_the_cache_holds_whole_has_no_pseudo_tokens(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PseudoTokens, "write", None)  # a call would fail
    prompt = cases.prompt(length)
    outputs = []
    for case in PLAIN, PSEUDO:
        executor = opened(case)
        first = executor.prefill_prompt(0, prompt).logits.copy()
        outputs.append([first, *decoded(executor, 0, length, [5, 6, 7])])
    assert np.array_equal(*outputs)


@pytest.mark.parametrize("name", ["default", "several tokens a step", "top tokens"])
def test_outputs_do_not_depend_on_neighbours(name: str) -> None:
    """Prompts are prefilled while others decode, in a batch of three."""
    directory = build_of(CASES[name]).directory
    prompts = [cases.prompt(length, seed) for seed, length in enumerate((40, 88, 20, 57, 88, 33))]
    together = LLM(directory, threads=1, max_num_batched_tokens=5).generate(prompts, GREEDY)
    alone = LLM(directory, threads=1)
    for prompt, found in zip(prompts, together, strict=True):
        assert alone.generate([prompt], GREEDY)[0].token_ids == found.token_ids


def test_same_prompt_again_keeps_the_same() -> None:
    """Also behind another executor's run of it, in the prompt cache that both share."""
    prompt, longer = cases.prompt(57), (*cases.prompt(57), 9, 8)
    plain, fresh = opened(PLAIN), opened(PSEUDO)
    sharing = open_executor(build_of(PSEUDO), threads=1, prompt_cache=plain.prompt_cache)
    fresh.prefill_prompt(0, prompt)
    want = kept(fresh)
    logits = plain.prefill_prompt(0, prompt).logits.copy()
    for executor in sharing, fresh:
        executor.prefill_prompt(1, prompt)
        for pair in zip(kept(executor), want, strict=True):
            assert np.array_equal(*pair)
    assert np.array_equal(plain.prefill_prompt(0, prompt).logits, logits)
    after = opened(PLAIN).prefill_prompt(0, longer).logits
    assert np.array_equal(plain.prefill_prompt(0, longer).logits, after)


def test_prompts_own_queries_stand_where_logits_are_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("snapexport.runtime.pseudo_tokens.can_sample", lambda _: False)
    plain, own = opened(PLAIN), opened(PSEUDO)
    for executor in plain, own:
        executor.prefill_prompt(0, cases.prompt(88))
    for pair in zip(kept(plain), kept(own), strict=True):
        assert np.array_equal(*pair)


def test_baseline_writes_no_pseudo_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PseudoTokens, "write", None)
    executor = open_executor(build_of(PSEUDO), threads=1, baseline=True)
    executor.prefill_prompt(0, cases.prompt(96))


def test_prompt_that_leaves_no_room_for_pseudo_tokens_is_refused() -> None:
    llm = LLM(build_of(PSEUDO).directory, threads=1)
    llm.generate([cases.prompt(88)], GREEDY)
    with pytest.raises(PromptTooLongError, match="a prompt has 89 tokens, the build takes 88"):
        llm.generate([cases.prompt(89)], GREEDY)


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
