"""ONNX Runtime on the CPU, on real builds: every layout gives its graphs' own tokens."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import Policy
from snapexport.contract.memory import cache_bytes
from snapexport.errors import UserError
from snapexport.runtime.engine.backend import DeviceError
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.builds import build
from tests.oracle import cases
from tests.oracle.cases import Case, build_of
from tests.oracle.compare import prefill_and_compress
from tests.oracle.raw import Slots
from tests.runtime.requests.traffic import assert_neighbours_change_nothing

CHUNKED = Case(baseline=True)
SINGLE_SHOT = Case(baseline=True, prefill_chunk=96)
LAYOUTS: dict[str, tuple[Case, bool]] = {
    "chunked": (CHUNKED, False),
    "chunked baseline": (CHUNKED, True),
    "single shot": (SINGLE_SHOT, False),
    "single shot baseline": (SINGLE_SHOT, True),
    "full": (Case(policy="full"), False),
    "full single shot": (Case(policy="full", prefill_chunk=96), False),
    "streaming": (Case(policy="streaming"), False),
    "portable": (Case(target="portable"), False),
    "decode graphs of fewer slots": (Case(decode_batches=(1, 2), baseline=True), False),
    "and of the baseline": (Case(decode_batches=(1, 2), baseline=True), True),
}
FORMS: dict[str, tuple[Case, bool]] = {
    "fp16 caches": (Case(cache_dtype="fp16"), False),
    "int8 caches": (Case(cache_dtype="int8", decode_batches=(1, 3)), False),
    "int8 caches, sliding": (Case("gemma2", cache_dtype="int8", prefill_chunk=96), False),
    "valid slots": (Case(decode_attention="valid", decode_batches=(1, 3)), False),
    "valid slots, sliding": (Case("gemma2", decode_attention="valid"), False),
}
LENGTHS = (1, 7, 31, 32, 33, 64, 70, 96)
EVERY = LAYOUTS | FORMS
layouts = pytest.mark.parametrize(("case", "baseline"), LAYOUTS.values(), ids=LAYOUTS.keys())


def executor_of(case: Case, baseline: bool = False) -> Executor:
    return open_executor(build_of(case), baseline=baseline, threads=1)


def by_hand(case: Case, ids: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    """Greedy tokens of the graphs, run with plain arrays and one request at a time."""
    graphs = cases.built(case)
    logits, request = prefill_and_compress(graphs, ids)
    slots, out = Slots(graphs, [request]), [int(logits.argmax())]
    while len(out) < tokens:
        out.append(int(slots.step([out[-1]])[0].argmax()))
    return tuple(out)


def reference(case: Case, baseline: bool) -> Case:
    """The build whose graphs by hand say what this one must: the full cache's for a baseline."""
    full = baseline or case.policy == "full"
    return Case(policy="full") if full else replace(case, baseline=False)


@layouts
def test_executor_of_every_layout_gives_the_tokens_of_its_graphs(
    case: Case, baseline: bool
) -> None:
    """All at once, through slots that others had before."""
    llm = LLM.from_executor(executor_of(case, baseline))
    prompts = [cases.prompt(length) for length in LENGTHS]
    limit = llm.executor.limits.positions
    room = [min(12, limit - length + 1) for length in LENGTHS]
    params = [SamplingParams(max_tokens=tokens, ignore_eos=True) for tokens in room]
    completions = llm.generate(prompts, params)
    for prompt, tokens, completion in zip(prompts, room, completions, strict=True):
        assert completion.token_ids == by_hand(reference(case, baseline), prompt, tokens)


@pytest.mark.parametrize(("case", "baseline"), EVERY.values(), ids=EVERY.keys())
def test_outputs_do_not_depend_on_neighbours(case: Case, baseline: bool) -> None:
    count = 200 if (case, baseline) == LAYOUTS["chunked"] else 24
    llm = LLM.from_executor(executor_of(case, baseline), max_num_batched_tokens=20)
    assert_neighbours_change_nothing(llm, LLM.from_executor(executor_of(case, baseline)), count)
    assert slots_in_use_at_once(llm) == llm.executor.limits.batch, "a slot leaked"


def slots_in_use_at_once(llm: LLM) -> int:
    """The largest number of requests that decode in one step."""
    for seed in range(2 * llm.executor.limits.batch):
        llm.submit(cases.prompt(1, seed), SamplingParams(max_tokens=30, ignore_eos=True))
    most = 0
    while llm.busy:
        most = max(most, len({delta.request_id for delta in llm.step()}))
    return most


def broken_build(case: Case, token: int, directory: Path) -> Build:
    """A build whose numbers overflow to NaN wherever it reads the token."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(cases.checkpoint(case.checkpoint))
    model.get_input_embeddings().weight.data[token] = np.nan
    model.save_pretrained(directory / "model")
    cases.build_checkpoint(directory / "model", directory / "build", case)
    return Build.open(directory / "build")


@pytest.mark.parametrize("policy", ["snapstream", "full"])
def test_a_broken_request_leaves_nothing_to_the_next(policy: Policy, tmp_path: Path) -> None:
    """One breaks in decode while a long prompt is half-way, one in prefill, in several chunks."""
    case, params = Case(policy=policy, target="portable"), SamplingParams(6, ignore_eos=True)
    late, clean = cases.prompt(60), [cases.prompt(n, seed=1) for n in (90, 5, 33, 64, 1)]
    (free,) = LLM.from_executor(executor_of(case)).generate(late, params)
    read = {*late, *chain(*clean)}
    step, token = next((i, t) for i, t in enumerate(free.token_ids[1:], 1) if t not in read)
    broken = broken_build(case, token, tmp_path)
    expected = [llm_of(broken).generate(prompt, params)[0] for prompt in clean]
    assert {completion.finish_reason for completion in expected} == {"length"}
    llm = llm_of(broken, most=20)
    ended, *others = llm.generate([late, *clean], params)
    assert (ended.token_ids, ended.finish_reason) == (free.token_ids[: step + 1], "error")
    assert others == expected
    early = (*cases.prompt(50), token, *cases.prompt(40))
    for _ in range(llm.executor.limits.batch):
        ended, *others = llm.generate([early, *clean], params)
        assert (ended.token_ids, ended.finish_reason) == ((), "error")
        assert others == expected


def llm_of(build: Build, most: int | None = None) -> LLM:
    executor = open_executor(build, threads=1)
    return LLM.from_executor(executor, max_num_batched_tokens=most)


def test_prepacked_weights_change_nothing() -> None:
    prompt, params = cases.prompt(50), SamplingParams(max_tokens=12, ignore_eos=True)
    prepacked = open_executor(build_of(CHUNKED), threads=1, prepack=True)
    (completion,) = LLM.from_executor(prepacked).generate(prompt, params)
    assert completion.token_ids == by_hand(reference(CHUNKED, False), prompt, 12)


def test_every_executor_call_raises_after_close() -> None:
    executor, zeros = executor_of(CHUNKED), np.zeros(3, np.int64)
    executor.close()
    executor.close()
    uses: list[Callable[[], object]] = [
        lambda: executor.prefill_prompt(0, cases.prompt(20)),
        lambda: executor.decode(zeros, zeros, zeros),
        lambda: executor.move(0, 1),
        lambda: executor.clear(0),
        lambda: executor.compress(0, 20),
    ]
    for use in uses:
        with pytest.raises(DeviceError, match="the executor was closed"):
            use()


def test_a_compressed_cache_goes_on_past_L_max_and_a_full_cache_does_not() -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    compressed, full = (
        LLM.from_executor(executor_of(CHUNKED, baseline)).generate(cases.prompt(90), params)[0]
        for baseline in (False, True)
    )
    assert len(compressed.token_ids) == 40
    assert len(full.token_ids) == 7 and full.finish_reason == "length"


@pytest.mark.parametrize("case", [CHUNKED, SINGLE_SHOT], ids=["chunked", "single shot"])
def test_topk_positions_are_those_of_the_last_prompt(case: Case) -> None:
    executor, ids = executor_of(case), cases.prompt(70)
    LLM.from_executor(executor).generate(ids, SamplingParams(max_tokens=1))
    _, request = prefill_and_compress(cases.built(replace(case, baseline=False)), ids)
    kept = executor.topk_positions()
    assert kept is not None and len(kept) == len(request.topk)
    for got, expected in zip(kept, request.topk, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_topk_positions_are_none_without_compression_and_empty_without_a_vote() -> None:
    assert executor_of(CHUNKED, baseline=True).topk_positions() is None
    assert executor_of(Case(policy="full")).topk_positions() is None
    kept = executor_of(Case(policy="streaming")).topk_positions()
    assert kept is not None and [layer.shape for layer in kept] == [(2, 0), (2, 0)]


def test_fp16_build_gives_fp32_logits_close_to_an_fp32_builds(tmp_path: Path) -> None:
    out = tmp_path / "half"
    build(cases.checkpoint("llama"), out, L_max=96, L_recent=16, K=12, batch=3, dtype="fp16")
    half, single = open_executor(Build.open(out), threads=1), executor_of(CHUNKED)
    ids = cases.prompt(20)
    expected, got = single.prefill_prompt(0, ids).logits, half.prefill_prompt(0, ids).logits
    assert got.dtype == np.float32 and np.abs(got - expected).max() < 0.1
    zeros = np.zeros(3, np.int64)
    assert half.decode(zeros, zeros, zeros).logits.dtype == np.float32


def test_cache_bytes_follow_from_the_shapes() -> None:
    layers, parts, heads, width, fp32 = 2, 2, 2, 16, 4
    position = layers * parts * heads * width * fp32
    chunked = cache_bytes(build_of(CHUNKED).manifest)
    assert (chunked.prefill, chunked.decode) == (96 * position, 3 * 32 * position)
    assert chunked.full == 3 * 96 * position
    assert cache_bytes(build_of(SINGLE_SHOT).manifest).prefill == 0


def test_a_full_build_is_its_own_baseline() -> None:
    assert executor_of(Case(policy="full"), baseline=True).limits.positions == 96


def test_a_baseline_that_was_not_built_is_refused() -> None:
    with pytest.raises(UserError, match="no baseline graphs") as refusal:
        executor_of(Case(policy="streaming"), baseline=True)
    assert "--baseline" in refusal.value.hint


def test_bf16_on_the_cpu_is_refused_with_a_hint() -> None:
    good = build_of(CHUNKED)
    half = Build(good.directory, good.manifest.model_copy(update={"dtype": "bf16"}))
    with pytest.raises(UserError, match="bf16") as refusal:
        open_executor(half)
    assert "--dtype fp32" in refusal.value.hint


@pytest.mark.parametrize(
    ("field", "value"), [("shape", [3, 2, 31, 16]), ("dtype", "float16"), ("name", "other")]
)
def test_graphs_that_differ_from_the_manifest_are_refused(field: str, value: Any) -> None:
    good = build_of(CHUNKED)
    decode = good.manifest.graphs["decode"]
    *rest, last = decode.inputs
    changed = decode.model_copy(update={"inputs": [*rest, last.model_copy(update={field: value})]})
    graphs = good.manifest.graphs | {"decode": changed}
    wrong = Build(good.directory, good.manifest.model_copy(update={"graphs": graphs}))
    with pytest.raises(UserError, match=r"decode\.onnx .*the manifest says"):
        open_executor(wrong)


def test_a_file_that_is_not_a_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "decode.onnx").write_bytes(b"no graph")
    with pytest.raises(UserError, match="cannot load"):
        open_executor(Build(tmp_path, build_of(CHUNKED).manifest))


def test_zero_threads_are_refused() -> None:
    with pytest.raises(UserError, match="0 threads"):
        open_executor(build_of(CHUNKED), threads=0)
