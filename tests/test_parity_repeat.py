"""A repeated prompt votes: kept positions and logits are those of transformers, fed alike."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.eval.accuracy.graph_runner import GraphRunner
from snapexport.runtime.executor import Executor
from snapexport.runtime.llm import LLM
from snapexport.runtime.open_executor import open_executor
from snapexport.runtime.prompts import PromptTooLongError
from snapexport.runtime.repetition import OVERLAP, repeated_chunk, repeated_starts
from snapexport.runtime.requests import SamplingParams
from tests.oracle import cases, pseudo
from tests.oracle.cases import LOGITS, Case

torch.set_num_threads(1)

STEPS = 16
PLAIN = Case(decode_batches=(1,), baseline=True)
REPEAT = replace(PLAIN, vote_queries="repeat", L_obs=32, pool_kernel=3)
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


def chunks(prompt: tuple[int, ...], chunk: int) -> list[list[int]]:
    count = len(repeated_starts(len(prompt), chunk))
    return [repeated_chunk(prompt, chunk, index) for index in range(count)]


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


def decoded(executor: Executor, slot: int, first: int, tokens: list[int]) -> list[Array]:
    """Logits of steps that are fed with `tokens`. The slots before `slot` are idle."""
    rows = []
    for step, token in enumerate(tokens):
        fed = np.zeros((3, slot + 1), np.int64)
        fed[:, slot] = token, first + step, first
        rows.append(executor.decode(*fed)[slot].logits.copy())
    return rows


@pytest.mark.parametrize("name", CASES)
def test_kept_positions_and_logits_are_those_of_transformers(name: str) -> None:
    case = CASES[name]
    executor = opened(case)
    for slot, most in enumerate(LENGTHS):
        length = case.geometry.longest_prompt if most == LENGTHS[-1] else most
        prompt, want = expected(case, length)
        prefilled = executor.prefill_prompt(slot, prompt).logits
        assert np.abs(prefilled - want.logits[0]).max() <= LOGITS
        for layer, found in enumerate(kept(executor)):
            assert np.array_equal(found, want.topk_positions[layer]), f"{length}, layer {layer}"
        if case.cache_dtype:
            continue
        rows = decoded(executor, slot, length, want.tokens[:-1])
        assert max(np.abs(rows - want.logits[1:]).max(-1)) <= LOGITS, length


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


def test_repetition_changes_what_is_kept_and_not_the_first_token() -> None:
    prompt = cases.prompt(64)
    plain, own = opened(PLAIN), opened(REPEAT)
    first = plain.prefill_prompt(0, prompt).logits.copy()
    assert np.array_equal(own.prefill_prompt(0, prompt).logits, first)
    assert any(not np.array_equal(*pair) for pair in zip(kept(plain), kept(own), strict=True))


@pytest.mark.parametrize("length", [1, 20, 32])
def test_prompt_that_the_cache_holds_whole_is_not_repeated(length: int) -> None:
    prompt = cases.prompt(length)
    outputs = []
    for case in PLAIN, REPEAT:
        executor = opened(case)
        assert executor.limits.repeated_chunks(length) == 0
        first = executor.prefill_prompt(0, prompt).logits.copy()
        outputs.append([first, *decoded(executor, 0, length, [5, 6, 7])])
    assert np.array_equal(*outputs)


@pytest.mark.parametrize("name", ["default", "several tokens a step", "top tokens"])
def test_outputs_do_not_depend_on_neighbours(name: str) -> None:
    """Prompts are prefilled and repeated while others decode, in a batch of three."""
    directory = build_of(CASES[name]).directory
    prompts = [cases.prompt(length, seed) for seed, length in enumerate((40, 64, 20, 57, 64, 33))]
    together = LLM(directory, threads=1, max_num_batched_tokens=5).generate(prompts, GREEDY)
    alone = LLM(directory, threads=1)
    for prompt, found in zip(prompts, together, strict=True):
        assert alone.generate([prompt], GREEDY)[0].token_ids == found.token_ids


def test_same_prompt_again_keeps_the_same() -> None:
    """Also behind another executor's run of it, in the prompt cache that both share."""
    prompt, longer = cases.prompt(57), (*cases.prompt(57), 9, 8)
    plain, fresh = opened(PLAIN), opened(REPEAT)
    sharing = open_executor(build_of(REPEAT), threads=1, prompt_cache=plain.prompt_cache)
    fresh.prefill_prompt(0, prompt)
    want = kept(fresh)
    logits = plain.prefill_prompt(0, prompt).logits.copy()
    for executor in sharing, fresh:
        executor.prefill_prompt(0, cases.prompt(60, 1))
        executor.prefill_prompt(1, prompt)
        for pair in zip(kept(executor), want, strict=True):
            assert np.array_equal(*pair)
    assert np.array_equal(plain.prefill_prompt(0, prompt).logits, logits)
    after = opened(PLAIN).prefill_prompt(0, longer).logits
    assert np.array_equal(plain.prefill_prompt(0, longer).logits, after)


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
    assert executor.limits.repeated_chunks(96) == 0


def test_prompt_that_leaves_no_room_for_its_repetition_is_refused() -> None:
    llm = LLM(build_of(REPEAT).directory, threads=1)
    llm.generate([cases.prompt(64)], GREEDY)
    with pytest.raises(PromptTooLongError, match="a prompt has 65 tokens, the build takes 64"):
        llm.generate([cases.prompt(65)], GREEDY)


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
