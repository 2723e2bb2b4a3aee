"""A prompt prefilled by one executor and decoded by another, for every form of cache."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.runtime.engine.backend import Buffer
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.engine.rows import Row, digest_of
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import OutputDelta, Prefilled, Request, SamplingParams
from tests.oracle import cases
from tests.oracle.cases import Case, build_of

pytestmark = pytest.mark.slow

CASES = {
    "fp32": Case(),
    "fp16": Case(cache_dtype="fp16"),
    "int8 with scales": Case(cache_dtype="int8"),
    "sliding, int8, single shot": Case("gemma2", cache_dtype="int8", prefill_chunk=96),
    "sliding": Case("qwen3-sliding", prefill_chunk=23),
    "latent": Case("deepseek-v3"),
    "learned sinks": Case("gpt-oss"),
    "pyramid": Case("mistral", budget="pyramid", K=20),
    "streaming": Case(policy="streaming"),
    "full": Case(policy="full"),
    "full single shot": Case(policy="full", prefill_chunk=96),
    "valid slots": Case(decode_attention="valid"),
    "top tokens": Case(top_tokens=16),
    "shared weights": Case(share_weights=True),
    "portable": Case(target="portable"),
    "several tokens a step": Case(tokens_per_step=4),
    "pseudo tokens": Case(vote_queries="pseudo"),
}
LENGTHS = 5, 32, 75
"""Shorter than the ring, a chunk, and longer than the whole compressed cache."""
STEPS = 12
GREEDY = SamplingParams(max_tokens=STEPS, ignore_eos=True)
Outputs = tuple[int, ...]


def opened(build: Build, **options: Any) -> Executor:
    executor = open_executor(build, **options)
    assert isinstance(executor, Executor)
    return executor


def together(build: Build, prompts: list[tuple[int, ...]], params: SamplingParams) -> list[Outputs]:
    """What one process answers."""
    llm = LLM(build.directory, threads=1)
    return [one.token_ids for one in llm.generate(prompts, params)]


def halves_of(case: Case) -> tuple[LLM, LLM]:
    """Processes that prefill and that decode."""
    directory = build_of(case).directory
    prefill, decode = (LLM(directory, threads=1, role=role) for role in ("prefill", "decode"))
    return prefill, decode


def last_deltas(llm: LLM) -> Iterator[OutputDelta]:
    while llm.busy:
        yield from llm.step()


def hand_over(
    prefill: LLM, decode: LLM, prompts: list[tuple[int, ...]], params: SamplingParams
) -> list[Outputs]:
    """The same by two processes' halves, each prompt handed over as soon as it is prefilled."""
    of_prompt = {}
    for prompt in prompts:
        request = replace(prefill.read(prompt, params), hand_over=True)
        of_prompt[prefill.submit(request)] = request
    tokens: dict[int, list[int]] = {}
    order: list[int] = []
    while prefill.busy or decode.busy:
        for delta in prefill.step():
            assert delta.row is not None and delta.finish_reason == "length"
            landed = copied(delta.row)
            prefill.release(delta.request_id)
            prefilled = Prefilled(landed, delta.token_ids[0])
            request = of_prompt[delta.request_id]
            order.append(decode.submit(replace(request, hand_over=False, prefilled=prefilled)))
        for delta in decode.step():
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
    return [tuple(tokens[request_id]) for request_id in order]


def copied(row: Row) -> Row:
    """The row in memory of its own, as after a transfer."""
    return replace(row, buffers=tuple(with_array(one, one.host.copy()) for one in row.buffers))


def with_array(one: Buffer, array: np.ndarray) -> Buffer:
    return replace(one, array=array, address=array.ctypes.data)


@pytest.mark.parametrize("name", CASES)
def test_prompt_handed_over_gives_the_tokens_of_one_process(name: str) -> None:
    build = build_of(CASES[name])
    # More than batch slots, so that slots are used again and neighbours come and go.
    prompts = [cases.prompt(length, seed) for seed in range(2) for length in LENGTHS]
    prefill, decode = halves_of(CASES[name])
    found = hand_over(prefill, decode, prompts, GREEDY)
    assert found == together(build, prompts, GREEDY)
    assert prefill.slots_used == decode.slots_used == 0


def test_seed_gives_the_tokens_of_one_process_after_a_hand_over() -> None:
    build, prompts = build_of(CASES["fp32"]), [cases.prompt(75), cases.prompt(20)]
    params = replace(GREEDY, temperature=1.0, seed=7)
    found = hand_over(*halves_of(CASES["fp32"]), prompts, params)
    assert found == together(build, prompts, params)


def test_a_build_of_several_tokens_a_step_hands_over_before_it_decodes() -> None:
    executor = opened(build_of(CASES["several tokens a step"]), threads=1)
    prompt = cases.prompt(20)
    token = int(executor.prefill_prompt(0, prompt).logits.argmax())
    assert executor.rows.view(0).next_position == len(prompt)
    executor.decode(*(np.array([n]) for n in (token, len(prompt), len(prompt))))
    with pytest.raises(UserError, match="hands a prompt over before"):
        executor.rows.view(0)


def test_roles_load_only_their_own_graphs() -> None:
    build = build_of(CASES["fp32"])
    prefill = opened(build, threads=1, role="prefill")
    decode = opened(build, threads=1, role="decode")
    assert set(prefill.backend.operators()) == {"prefill", "compress"}
    assert set(decode.backend.operators()) == {"decode"}
    with pytest.raises(UserError, match="only decodes"):
        decode.prefill_prompt(0, cases.prompt(5))
    idle = np.zeros(1, np.int64)
    with pytest.raises(UserError, match="only prefills"):
        prefill.decode(idle, idle, idle)


def test_row_exported_during_decode_goes_on_elsewhere_as_here() -> None:
    build, prompt = build_of(CASES["int8 with scales"]), cases.prompt(75)
    first, second = (opened(build, threads=1) for _ in range(2))
    tokens = [int(first.prefill_prompt(1, prompt).logits.argmax())]
    for _ in range(4):
        tokens.append(step(first, 1, tokens[-1], 75 + len(tokens) - 1))
    row = first.rows.view(1)
    assert (row.prompt_length, row.next_position) == (75, 79)
    second.rows.copy_in(2, row)
    for _ in range(4):
        position, token = 75 + len(tokens) - 1, tokens[-1]
        tokens.append(step(first, 1, token, position))
        assert step(second, 2, token, position) == tokens[-1]


def step(executor: Executor, slot: int, token: int, position: int) -> int:
    inputs = np.zeros((3, slot + 1), np.int64)
    inputs[:, slot] = token, position, 75
    return int(executor.decode(*inputs)[slot].logits.argmax())


@pytest.fixture(scope="module")
def halves() -> tuple[Executor, Executor]:
    """A prefilled batch slot 0, and an executor to adopt it."""
    build = build_of(CASES["int8 with scales"])
    prefill, decode = (opened(build, threads=1, role=r) for r in ("prefill", "decode"))
    prefill.prefill_prompt(0, cases.prompt(40))
    return prefill, decode


def spoilt(row: Row, **changes: object) -> Row:
    first, *rest = row.buffers
    return replace(row, buffers=(replace(first, **changes), *rest))


def truncated(row: Row) -> Row:
    first, *rest = row.buffers
    data = np.frombuffer(first.host.tobytes()[:-1], np.uint8)
    return replace(row, buffers=(with_array(first, data), *rest))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda row: replace(row, digest="0" * 64), "another build: .* 000000000000, this one's"),
        (lambda row: replace(row, device="cuda"), "are in memory of cuda, this build's in .* cpu"),
        (lambda row: replace(row, buffers=row.buffers[1:]), r"has \d+ caches, this build \d+"),
        (lambda row: spoilt(row, dtype="float16"), "float16 .*, this build's is .* float32"),
        (lambda row: spoilt(row, shape=(1, 2, 3, 4)), r"\[1, 2, 3, 4\], this build's is"),
        (lambda row: spoilt(row, name="past_key_values.9.key"), "past_key_values.9.key float32"),
        (truncated, r"has \d+ of \d+ bytes"),
        (lambda row: replace(row, next_position=39), "can't go on at position 39"),
        (lambda row: replace(row, next_position=10**9), "can't go on at position 1000000000"),
        (lambda row: replace(row, prompt_length=0), "prompt of 0 tokens"),
    ],
)
def test_row_that_does_not_fit_is_refused_and_changes_nothing(
    halves: tuple[Executor, Executor], spoil: object, why: str
) -> None:
    prefill, decode = halves
    before = [one.host.copy() for one in copied(decode_row(decode)).buffers]
    with pytest.raises(UserError, match=why):
        decode.rows.copy_in(1, spoil(prefill.rows.view(0)))  # type: ignore[operator]
    after = [one.host for one in decode_row(decode).buffers]
    assert all((a == b).all() for a, b in zip(after, before, strict=True))
    with pytest.raises(UserError, match="batch slot 1 holds no prompt"):
        decode.rows.view(1)


def decode_row(executor: Executor) -> Row:
    """The memory of batch slot 1, whatever it holds."""
    return Row("", "cpu", executor.rows.buffers(1), 1, 1)


def test_batch_slot_in_use_is_refused_until_it_is_released(
    halves: tuple[Executor, Executor],
) -> None:
    prefill, decode = halves
    row = prefill.rows.view(0)
    decode.rows.copy_in(0, row)
    with pytest.raises(UserError, match="batch slot 0 is in use"):
        decode.rows.copy_in(0, row)
    decode.release(0)
    decode.rows.copy_in(0, row)
    decode.clear(0)
    with pytest.raises(UserError, match="batch slot 0 holds no prompt"):
        decode.rows.view(0)


def test_decode_step_loses_idle_batch_slots_but_no_running_one() -> None:
    executor = opened(build_of(CASES["fp32"]), threads=1)
    for slot in (0, 1):
        executor.prefill_prompt(slot, cases.prompt(20, slot))
    executor.decode(*np.array([[3, 0], [20, 0], [20, 0]]))
    assert executor.rows.view(0).next_position == 21
    with pytest.raises(UserError, match="batch slot 1 holds no prompt"):
        executor.rows.view(1)


def test_kept_rows_hold_their_batch_slots_until_release() -> None:
    llm = LLM(build_of(CASES["fp32"]).directory, threads=1, role="prefill")
    for seed in range(5):
        llm.submit(handing_over(llm, cases.prompt(40, seed)))
    rows = {delta.request_id: delta.row for delta in last_deltas(llm)}
    assert len(rows) == llm.max_num_seqs == llm.slots_used == 3
    assert not llm.busy and len(llm.waiting) == 2
    llm.release(min(rows))
    assert llm.busy
    assert [delta.request_id for delta in last_deltas(llm)] == [3]


def handing_over(llm: LLM, prompt: tuple[int, ...]) -> Request:
    return replace(llm.read(prompt, GREEDY), hand_over=True)


def test_request_that_ends_with_its_first_token_keeps_nothing() -> None:
    llm = LLM(build_of(CASES["fp32"]).directory, threads=1, role="prefill")
    (token,) = (delta.token_ids[0] for delta in prefilled(llm, GREEDY))
    llm.release(0)
    (delta,) = prefilled(llm, replace(GREEDY, stop_token_ids=(token,)))
    assert delta.finish_reason == "stop" and delta.row is None and llm.slots_used == 0


def prefilled(llm: LLM, params: SamplingParams) -> list[OutputDelta]:
    llm.submit(replace(llm.read(cases.prompt(40), params), hand_over=True))
    return list(last_deltas(llm))


def test_cancelled_request_is_not_adopted() -> None:
    prefill, decode = halves_of(CASES["fp32"])
    (delta,) = prefilled(prefill, GREEDY)
    assert delta.row
    request = replace(
        decode.read(cases.prompt(40), GREEDY), prefilled=Prefilled(delta.row, delta.token_ids[0])
    )
    decode.cancel(decode.submit(request))
    assert [one.finish_reason for one in last_deltas(decode)] == ["cancelled"]
    assert decode.slots_used == 0 and not decode.waiting


def test_executor_that_decodes_hands_nothing_over() -> None:
    llm = LLM(build_of(CASES["fp32"]).directory, threads=1)
    with pytest.raises(UserError, match="not supported with an executor that decodes"):
        llm.submit(handing_over(llm, cases.prompt(40)))
    assert not llm.busy


def test_row_of_another_prompt_is_refused() -> None:
    prefill, decode = halves_of(CASES["fp32"])
    (delta,) = prefilled(prefill, GREEDY)
    assert delta.row
    request = replace(decode.read(cases.prompt(41), GREEDY), prefilled=Prefilled(delta.row, 5))
    with pytest.raises(UserError, match="the row holds 40 positions, the request's prompt 41"):
        decode.submit(request)
    assert not decode.busy


def test_digest_differs_between_builds_and_not_by_engines() -> None:
    manifest = build_of(CASES["fp32"]).manifest
    assert digest_of(manifest) != digest_of(build_of(CASES["fp16"]).manifest)
    engines = manifest.model_copy(update={"engines": {"gpu": manifest.graphs["decode"]}})
    assert digest_of(engines) == digest_of(manifest)


def test_penalties_count_the_first_token_that_another_process_chose() -> None:
    params = replace(GREEDY, repetition_penalty=1.5, frequency_penalty=1.0, min_tokens=3)
    prompts = [cases.prompt(length, 0) for length in LENGTHS]
    prefill, decode = halves_of(CASES["fp32"])
    expected = together(build_of(CASES["fp32"]), prompts, params)
    assert hand_over(prefill, decode, prompts, params) == expected
