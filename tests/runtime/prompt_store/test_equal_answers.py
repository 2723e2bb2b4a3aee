"""Answers that start from kept chunks equal those of a fresh prefill, in the same and in a later
process."""

import json
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from snapexport import LLM, SamplingParams
from snapexport.contract.pieces import Prefill, chunks, pieces_of
from snapexport.errors import UserError
from snapexport.methods.learned.scores import LearnedScores, Linear
from snapexport.runtime.requests.request import Completion
from tests.builds import build
from tests.oracle import cases
from tests.oracle.cases import Case, build_of

C = 16
CASE = Case(prefill_chunk=C)
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=5)
DOCUMENT = cases.prompt(70)


def ask(length: int, seed: int = 0) -> list[int]:
    """The document and a question after it."""
    return [*DOCUMENT, *cases.prompt(length, 100 + seed)]


def opened(case: Case, folder: Path | None = None, **options: Any) -> LLM:
    return LLM(build_of(case).directory, threads=1, prompt_cache=folder, **options)


@cache
def plain(case: Case, backend: Any = None) -> LLM:
    return opened(case, backend=backend)


def answer(llm: LLM, prompt: Sequence[int]) -> tuple[Completion, list[list[list[int]]]]:
    """The answer, and the positions that each layer's heads kept."""
    (done,) = llm.generate([list(prompt)], GREEDY)
    return done, [kept.tolist() for kept in llm.executor.topk_positions() or []]


def require_equal(
    found: tuple[Completion, list[list[list[int]]]],
    fresh: tuple[Completion, list[list[list[int]]]],
    cached: int,
    drafts: bool = False,
) -> None:
    """drafts: they may be others, and other graphs check them."""
    (one, kept), (other, positions) = found, fresh
    assert one.cached_tokens == cached
    assert one.token_ids == other.token_ids
    assert kept == positions
    if not drafts:
        assert one.logprobs == other.logprobs
    for ours, theirs in zip(one.logprobs, other.logprobs, strict=True):
        assert abs(ours.logprob - theirs.logprob) < 1e-5


def begin_alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


CASES = [CASE, Case(prefill_chunk=C, prompt_cache_dtype="fp16")]
SLOW = [
    Case("falcon_h1", prefill_chunk=C),
    Case("qwen3_5_text", prefill_chunk=C),
    Case("deepseek-v3", prefill_chunk=C),
    Case("gemma3", prefill_chunk=C),
    Case(prefill_chunk=C, short_chunks=(8,)),
    Case(prefill_chunk=C, L_max=128, vote_queries="repeat"),
    Case(prefill_chunk=C, vote_queries="pseudo"),
    Case("deepseek-v3-mtp", prefill_chunk=C, mtp=True, tokens_per_step=2),
    Case(prefill_chunk=C, policy="full"),
]


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)], ids=str
)
def test_a_second_question_starts_from_the_document_also_after_a_restart(
    case: Case, tmp_path: Path
) -> None:
    fresh, first = plain(case), opened(case, tmp_path)
    # Whole chunks of 70 tokens; with states a short one comes before the last.
    shared = 48 if fresh.executor.limits.prefill.rewinds is False else 64
    require_equal(answer(first, ask(5)), answer(fresh, ask(5)), 0)
    require_equal(answer(first, ask(13, 1)), answer(fresh, ask(13, 1)), shared, case.mtp)
    first.close()
    second = opened(case, tmp_path)
    require_equal(answer(second, ask(9, 2)), answer(fresh, ask(9, 2)), shared, case.mtp)
    second.close()


@pytest.mark.slow
@pytest.mark.parametrize("more", ["scores", "capacities"])
def test_learned_scores_and_smaller_capacities_start_from_kept_chunks(
    more: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"target": "portable", "prefill_capacities": [24, 48]}
    model = cases.checkpoint("llama")
    if more == "scores":
        config = json.loads((model / "config.json").read_text())
        draw = np.random.default_rng(3)
        shape = config["num_key_value_heads"], config["hidden_size"]
        linear = Linear(
            draw.standard_normal(shape).astype(np.float32), np.zeros(shape[0], np.float32)
        )
        made = LearnedScores(dict.fromkeys(range(config["num_hidden_layers"]), (linear,)))
        (tmp_path / "scores.safetensors").write_bytes(made.content())
        options = {"vote_queries": "learned", "scores": tmp_path / "scores.safetensors"}
    sizes: dict[str, Any] = {"L_max": 96, "L_sink": 4, "L_recent": 16, "K": 12, "prefill_chunk": C}
    out = build(model, tmp_path / "b", **sizes, **options).directory
    fresh = LLM(out, threads=1)
    for question, cached in ((5, 0), (9, 64)):
        llm = LLM(out, threads=1, prompt_cache=tmp_path / "kept")
        require_equal(answer(llm, ask(question)), answer(fresh, ask(question)), cached)
        answer(llm, ask(5)[:20])  # of a small capacity, before a long one
        require_equal(answer(llm, ask(7)), answer(fresh, ask(7)), 64)
        llm.close()


@pytest.mark.slow
def test_sparse_chunks_have_the_means_of_the_blocks_that_were_taken(tmp_path: Path) -> None:
    """The last prompt goes on past what the first ones have left, with sparse chunks of its own."""
    case = Case(prefill_chunk=C, L_max=256, prefill_budget=48)
    document = cases.prompt(150)
    fresh = plain(case)
    for length, cached in ((160, 0), (170, 144), (250, 144)):
        prompt = [*document, *cases.prompt(length - 150, length)]
        llm = opened(case, tmp_path)
        require_equal(answer(llm, prompt), answer(fresh, prompt), cached)
        llm.close()


@pytest.mark.slow
def test_openvino_starts_from_its_own_chunks(tmp_path: Path) -> None:
    case = Case(prefill_chunk=C, target="openvino")
    fresh = plain(case, "openvino")
    for question, cached in ((5, 0), (9, 64)):
        llm = opened(case, tmp_path, backend="openvino")
        require_equal(answer(llm, ask(question)), answer(fresh, ask(question)), cached)
        llm.close()
    other = opened(case, tmp_path)
    assert answer(other, ask(5))[0].cached_tokens == 0, "its last bits are others"
    other.close()


@settings(max_examples=12, deadline=None)
@given(
    lengths=some.lists(some.integers(1, 90), min_size=2, max_size=4),
    common=some.integers(0, 80),
    cancels=some.booleans(),
    fp16=some.booleans(),
)
def test_prompts_that_begin_alike_answer_as_by_themselves(
    lengths: list[int],
    common: int,
    cancels: bool,
    fp16: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Several at once, some of them cancelled in prefill."""
    case = CASES[fp16]
    prompts = [
        [*cases.prompt(common), *cases.prompt(90, 7 + at)][:length]
        for at, length in enumerate(lengths)
    ]
    llm = opened(case, tmp_path_factory.mktemp("kept"))
    if cancels:
        given_up = llm.submit(llm.read(prompts[0], GREEDY))
        llm.step()
        llm.cancel(given_up)
        llm.step()
    together = llm.generate(prompts, GREEDY)
    for at, (prompt, found) in enumerate(zip(prompts, together, strict=True)):
        before = prompts[: 1 if cancels and not at else at]
        alike = max((begin_alike(one, prompt) for one in before), default=0)
        expected, _ = answer(plain(case), prompt)
        assert found.token_ids == expected.token_ids
        assert found.cached_tokens <= alike
        for one, other in zip(found.logprobs, expected.logprobs, strict=True):
            assert abs(one.logprob - other.logprob) < 1e-5
    llm.close()


def test_a_conversation_votes_over_all_of_it_again(tmp_path: Path) -> None:
    """Beside parked rows, which are for what is longer than L_max."""
    case = Case(prefill_chunk=C, extend=True)
    first = [*DOCUMENT[:40]]
    turn = [*first, *cases.prompt(20, 3)]
    llm = opened(case, tmp_path, parked_rows=2)
    answer(llm, first)
    require_equal(answer(llm, turn), answer(plain(case), turn), 32)
    beyond = [*turn, *cases.prompt(60, 4)]
    assert len(beyond) > case.L_max
    assert answer(llm, beyond)[0].cached_tokens == len(turn), "a row"
    llm.close()


@pytest.mark.parametrize("in_files", [False, True])
def test_a_salt_keeps_its_prompts_apart(in_files: bool, tmp_path: Path) -> None:
    """In memory, too: the chunks of another salt are run again."""
    llm = opened(CASE, tmp_path)
    for salt, cached in (("alice", 0), ("bob", 0), ("", 0), ("alice", 64), ("bob", 64), ("", 64)):
        if in_files:
            llm.close()
            llm = opened(CASE, tmp_path)
        before = llm.executor.prompt_cache
        assert before
        done = next(llm.stream(llm.read(ask(5), GREEDY, cache_salt=salt)))
        assert done.cached_tokens == cached, salt
    llm.close()


def test_without_a_folder_a_salt_still_empties_the_cache_in_memory() -> None:
    llm = opened(CASE)
    runs: list[int] = []
    (graph,) = llm.executor.taker("chunk")._graphs[C].values()  # type: ignore[attr-defined]
    run = graph.run
    graph.run = lambda: (runs.append(1), run())[1]
    for salt, count in (("a", 5), ("a", 0), ("b", 5), ("", 5)):
        runs.clear()
        llm.generate([ask(5)], GREEDY, cache_salt=salt)
        assert len(runs) == count, salt


@pytest.mark.parametrize("salt", ["s" * 257, 7])
def test_a_salt_that_cannot_be_used_is_refused(salt: Any) -> None:
    with pytest.raises(UserError, match=r"cache_salt .* cannot be used"):
        plain(CASE).generate([ask(5)], GREEDY, cache_salt=salt)


def test_steps_of_kept_chunks_are_left_out(tmp_path: Path) -> None:
    """They would delay the first token while others run."""
    llm = opened(CASE, tmp_path)
    answer(llm, ask(5))
    llm.submit(llm.read([5, 6, 7], SamplingParams(max_tokens=40, ignore_eos=True)))
    llm.step()
    request = llm.submit(llm.read(ask(9, 1), GREEDY))
    steps = 0
    while llm.prefilled(request) < len(ask(9)):
        llm.step()
        steps += 1
    assert steps == 2, "one takes the kept chunks, one the last"
    llm.close()


@given(length=some.integers(1, 200), chunk=some.integers(1, 24), rewinds=some.booleans())
def test_whole_chunks_are_those_that_prompts_have_in_common(
    length: int, chunk: int, rewinds: bool
) -> None:
    prefill = Prefill((chunk,), 1000, rewinds=rewinds)
    spans = [(piece.start, piece.end) for piece in pieces_of(length, prefill)]
    count = prefill.whole_chunks(length)
    assert spans[:count] == [(at * chunk, (at + 1) * chunk) for at in range(count)]
    assert spans[-1][1] == length and count < len(spans) <= count + (1 if rewinds else 2)
    if not rewinds:
        assert spans == chunks(length, chunk, rewinds=False)
        assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
        assert spans[-1][1] - spans[-1][0] == min(length, chunk), "all voters are in the last"


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        (Case(extend=True), {"prefill": "blocks"}, "it takes no chunks"),
        (Case(prefill_chunk=96), {}, "a build whose prefill chunk is L_max"),
        (CASE, {"role": "decode"}, "it prefills nothing"),
        (CASE, {"prompt_cache_size": -1}, "prompt_cache_size -1"),
        (CASE, {"prompt_cache": "/proc/kept"}, "cannot hold prompt caches"),
        (CASE, {"prompt_cache": None, "prompt_cache_size": 9}, "without --prompt-cache"),
    ],
    ids=str,
)
def test_runs_that_keep_no_chunks_are_refused(
    case: Case, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        LLM(build_of(case).directory, threads=1, **{"prompt_cache": tmp_path, **options})


def test_kept_chunks_are_those_of_the_memory_to_the_bit(tmp_path: Path) -> None:
    llm, other = opened(CASE, tmp_path), opened(CASE)
    answer(llm, ask(5))
    llm.close()
    again = opened(CASE, tmp_path)
    again.submit(again.read(ask(6), GREEDY))
    other.submit(other.read(ask(6), GREEDY))
    for one in (again, other):
        while one.busy:
            one.step()
    caches = (one.executor.prompt_cache for one in (again, other))
    ours, theirs = (found.buffers for found in caches if found)
    for name, buffer in ours.items():
        used = (slice(None), slice(None), slice(0, 76))
        assert np.array_equal(buffer.host[used], theirs[name].host[used]), name
    again.close()
