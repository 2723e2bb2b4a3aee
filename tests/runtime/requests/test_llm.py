"""LLM on a fake executor: the deltas of each request, its end, and no leaks."""

import gc
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapexport.errors import UserError
from snapexport.runtime.engine.limits import Limits
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import OutputDelta, SamplingParams
from tests.runtime.tokenizers_for_tests import byte_level

from .fake_executor import FakeExecutor, drain, make_limits

TOKENIZER = byte_level()
EOS = 256
BROKEN = 111
"""In `make_llm(broken=True)`, a token after which the logits are NaN."""


def make_llm(
    limits: Limits | None = None,
    budget: int | None = None,
    text: bool = True,
    broken: bool = False,
) -> LLM:
    engine = FakeExecutor(limits or make_limits(), BROKEN if broken else None)
    return LLM.from_executor(engine, TOKENIZER if text else None, budget)


def alone(
    prompt: list[int],
    params: SamplingParams,
    limits: Limits | None = None,
    broken: bool = False,
) -> Any:
    (completion,) = make_llm(limits, broken=broken).generate(prompt, params)
    return completion


def random_params(rng: random.Random) -> SamplingParams:
    temperature = rng.choice([0.0, 0.7, 1.5])
    return SamplingParams(rng.randint(1, 20), temperature, top_k=9, seed=rng.randint(0, 99))


@pytest.mark.parametrize("budget", [None, 4, 50])
def test_outputs_do_not_depend_on_neighbours(budget: int | None) -> None:
    """200 requests that arrive, break and are cancelled at random give what each gives alone."""
    rng = random.Random(budget)
    sizes = (1, 2, 3)
    limits = make_limits(eos_token_id=frozenset(range(0, 257, 20)), decode_batches=sizes)
    llm = make_llm(limits, budget, broken=True)
    submitted: dict[int, tuple[list[int], SamplingParams]] = {}
    got: dict[int, list[OutputDelta]] = {}
    cancelled: set[int] = set()
    while len(submitted) < 200 or llm.busy:
        if len(submitted) < 200 and rng.random() < 0.5:
            prompt = [rng.randrange(257) for _ in range(rng.randint(1, 40))]
            params = random_params(rng)
            submitted[llm.submit(prompt, params)] = prompt, params
        if submitted and rng.random() < 0.1:
            victim = rng.choice(list(submitted))
            if not got.get(victim) or not got[victim][-1].finish_reason:
                cancelled.add(victim)
            llm.cancel(victim)
        for delta in llm.step():
            got.setdefault(delta.request_id, []).append(delta)
    assert got.keys() == submitted.keys()
    for request_id, (prompt, params) in submitted.items():
        expected = alone(prompt, params, limits, broken=True)
        *before, last = got[request_id]
        assert not any(delta.finish_reason for delta in before)
        tokens = tuple(token for delta in got[request_id] for token in delta.token_ids)
        if request_id in cancelled:
            assert last.finish_reason == "cancelled"
            assert tokens == expected.token_ids[: len(tokens)]
        else:
            text = "".join(delta.text for delta in got[request_id])
            assert (tokens, text, last.finish_reason) == (
                expected.token_ids,
                expected.text,
                expected.finish_reason,
            )
    reasons = {deltas[-1].finish_reason for deltas in got.values()}
    assert reasons == {"stop", "length", "cancelled", "error"}


@settings(max_examples=20)
@given(st.lists(st.lists(st.integers(0, 256), min_size=1, max_size=20), max_size=6))
def test_generate_keeps_the_order_and_joins_the_deltas(prompts: list[list[int]]) -> None:
    params = SamplingParams(max_tokens=5)
    completions = make_llm().generate(prompts, params)
    assert [list(c.prompt_token_ids) for c in completions] == prompts
    assert completions == [alone(prompt, params) for prompt in prompts]
    for completion in completions:
        assert completion.text == TOKENIZER.decode(list(completion.token_ids))
        assert len(completion.token_ids) == 5 and completion.finish_reason == "length"


def test_prompts_may_be_texts_or_tokens_one_or_many() -> None:
    llm, ids = make_llm(), TOKENIZER.encode("hé").ids
    (expected,) = llm.generate("hé")
    assert expected.prompt_token_ids == tuple(ids)
    mixed: Any = [ids, "hé", np.array(ids)]
    assert llm.generate(mixed) == [expected] * 3
    assert llm.generate(ids) == llm.generate(["hé"]) == [expected]
    assert llm.generate([]) == []


def test_each_prompt_may_have_its_own_params() -> None:
    each = [SamplingParams(max_tokens=n) for n in (1, 7, 3)]
    completions = make_llm().generate(["a", "b", "c"], each)
    assert [len(completion.token_ids) for completion in completions] == [1, 7, 3]


def test_an_eos_ends_the_text_but_counts_as_a_token() -> None:
    free = alone([1, 2, 3], SamplingParams(max_tokens=10))
    eos = free.token_ids[4]
    limits = make_limits(eos_token_id=frozenset({eos}))
    ended = alone([1, 2, 3], SamplingParams(max_tokens=10), limits)
    assert ended.finish_reason == "stop"
    assert ended.token_ids == free.token_ids[: free.token_ids.index(eos) + 1]
    assert ended.text == TOKENIZER.decode(list(ended.token_ids[:-1]))
    ignored = alone([1, 2, 3], SamplingParams(max_tokens=10, ignore_eos=True), limits)
    assert ignored == free


def test_a_stop_string_ends_the_text_before_it() -> None:
    free = alone([5], SamplingParams(max_tokens=40))
    stop = free.text[20:22]
    ended = alone([5], SamplingParams(max_tokens=40, stop=stop))
    assert ended.finish_reason == "stop" and ended.text == free.text[: free.text.index(stop)]
    assert ended.token_ids == free.token_ids[: len(ended.token_ids)]


@pytest.mark.parametrize(("length", "expected"), [(1, 8), (5, 4), (8, 1)])
def test_a_request_ends_at_the_last_position(length: int, expected: int) -> None:
    """Tokens are fed at positions below the limit; the last one sampled need not be fed."""
    limits = make_limits(longest_prompt=8, positions=8)
    completion = alone([1] * length, SamplingParams(), limits)
    assert len(completion.token_ids) == expected and completion.finish_reason == "length"


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "no tokens": ([[]], None, "empty"),
    "no text": ("", None, "empty"),
    "too long": ([[1] * 41], None, "41 tokens, the build takes 40"),
    "beyond the vocabulary": ([[1, 257]], None, "257 is not a token"),
    "negative token": ([[-1]], None, "-1 is not a token"),
    "fraction": ([[1.5]], None, "1.5 is not a token"),
    "nothing": (None, None, "None is not a prompt"),
    "bytes": (b"text", None, "not a prompt"),
    "half a surrogate": ("a\ud800", None, "not valid text"),
    "too few params": (["a", "b"], [SamplingParams()], "1 sampling parameters for 2 prompts"),
    "no params": ("a", "greedy", "sampling parameters|not a SamplingParams"),
}


@pytest.mark.parametrize("case", REFUSED, ids=REFUSED.keys())
def test_bad_input_is_refused_before_anything_is_queued(case: str) -> None:
    prompts, params, message = REFUSED[case]
    llm = make_llm()
    with pytest.raises(UserError, match=message):
        llm.generate(prompts, params)
    with pytest.raises(UserError):
        llm.generate(["fine", *prompts] if isinstance(prompts, list) else prompts, params)
    assert not llm.busy


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="banana"):
        LLM("no such build", banana=1)


def test_without_a_tokenizer_tokens_still_work() -> None:
    llm = make_llm(text=False)
    (completion,) = llm.generate([1, 2], SamplingParams(max_tokens=3))
    assert len(completion.token_ids) == 3 and completion.text == ""
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        llm.generate("text")
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        llm.generate([1], SamplingParams(stop="x"))


def test_stream_refuses_at_the_call_and_queues_at_the_first_read() -> None:
    llm = make_llm()
    with pytest.raises(UserError):
        llm.stream("")
    llm.stream("never read")
    assert not llm.busy


def test_an_abandoned_stream_is_cancelled() -> None:
    llm = make_llm(make_limits(batch=1))
    for _ in range(3):
        stream = llm.stream([1, 2], SamplingParams(max_tokens=1000))
        next(stream)
        assert llm.busy
        del stream
        gc.collect()
        assert not llm.busy
    assert len(llm.generate([1], SamplingParams(max_tokens=2))[0].token_ids) == 2


def test_streams_and_submissions_do_not_take_each_others_deltas() -> None:
    llm, params = make_llm(), SamplingParams(max_tokens=6)
    expected = [completion.token_ids for completion in llm.generate([[1], [2], [3]], params)]
    submitted = llm.submit([3], params)
    pairs = list(zip(llm.stream([1], params), llm.stream([2], params), strict=True))
    for i, stream in enumerate(zip(*pairs, strict=True)):
        assert tuple(inc.token_ids[0] for inc in stream) == expected[i]
    tokens = [inc.token_ids[0] for inc in drain(llm)[submitted]]
    assert tuple(tokens) == expected[2]


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_cancel_gives_one_cancelled_delta_in_every_state(steps: int) -> None:
    llm = make_llm(make_limits(batch=1))
    request_id = llm.submit([1] * 10, SamplingParams(max_tokens=100))
    for _ in range(steps):
        llm.step()
    llm.cancel(request_id)
    llm.cancel(request_id)
    llm.cancel(12345)
    assert drain(llm) == {request_id: [OutputDelta(request_id, "", (), "cancelled")]}


def test_a_cancelled_stream_ends() -> None:
    llm = make_llm()
    stream = llm.stream([1], SamplingParams(max_tokens=100))
    llm.cancel(next(stream).request_id)
    assert [delta.finish_reason for delta in stream] == ["cancelled"]


@pytest.mark.parametrize("at", [0, 5, 9], ids=["first chunk", "second", "last"])
def test_an_error_in_a_step_leaves_no_request(at: int) -> None:
    """The broken request ends alone: the others get their tokens and their own ends."""
    llm, params = make_llm(broken=True), SamplingParams(max_tokens=6)
    broken = [1] * 10
    broken[at] = BROKEN
    first, bad, *others = llm.generate([[7], broken, [8] * 9, [9] * 40], params)
    assert (bad.token_ids, bad.text, bad.finish_reason) == ((), "", "error")
    assert [first, *others] == [alone(p, params) for p in ([7], [8] * 9, [9] * 40)]
    assert {completion.finish_reason for completion in (first, *others)} == {"length"}
    assert not llm.busy


def test_a_request_that_breaks_while_it_decodes_keeps_what_it_had() -> None:
    """It ends while another prompt is half-way through prefill. That prefill goes on."""
    params = SamplingParams(max_tokens=30)
    free = alone([5], params)
    engine = FakeExecutor(make_limits(), broken_token=free.token_ids[4])
    llm = LLM.from_executor(engine, TOKENIZER)
    bad, good = llm.generate([[5], [1] * 40], params)
    assert bad.token_ids == free.token_ids[:5] and bad.finish_reason == "error"
    assert bad.text == TOKENIZER.decode(list(bad.token_ids))
    assert good == alone([1] * 40, params)
    assert not engine.broken_slots and not engine.prefill_is_broken


def test_a_stream_goes_on_after_another_requests_error() -> None:
    llm, params = make_llm(broken=True), SamplingParams(max_tokens=6)
    broken = llm.submit([BROKEN], params)
    deltas = list(llm.stream([7], params))
    tokens = tuple(token for delta in deltas for token in delta.token_ids)
    assert tokens == alone([7], params).token_ids
    assert drain(llm) == {broken: [OutputDelta(broken, "", (), "error")]}


def test_a_prompt_ends_with_its_first_broken_chunk() -> None:
    """If only the last chunk were checked, a cancel before it would leave NaN in the cache."""
    llm = make_llm(broken=True)
    request_id = llm.submit([BROKEN] + [1] * 39)
    assert llm.step() == [OutputDelta(request_id, "", (), "error")]
    assert not llm.busy


def test_an_exception_of_the_executor_leaves_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = make_llm()
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(FakeExecutor, "_next", lambda *_: 1 / 0)
        llm.generate(["a", "b"])
    assert not llm.busy
    assert llm.generate("a") == make_llm().generate("a")
