"""The runtime drafts by multi-token prediction as transformers does, and the output stays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from snapexport.methods.mtp.run import MtpDrafter
from snapexport.runtime.requests.generation import Generation
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from snapexport.runtime.requests.speculation import Draft, Payoff, StepInputs
from tests.oracle import cases, drafts
from tests.oracle.cases import Case
from tests.oracle.drafts import Drafts
from tests.runtime.engine.test_hand_over import halves_of, hand_over

torch.set_num_threads(1)
pytestmark = pytest.mark.slow

NAME = "deepseek-v3-mtp-right"
STEPS, RING = 32, 16
CASE = Case(NAME, mtp=True, tokens_per_step=2)
LENGTHS = (1, 12, 90)
PARAMS = SamplingParams(max_tokens=STEPS, ignore_eos=True)
Made = list[tuple[int, int, int]]
"""Request, position of the token before, and the drafted token."""


@cache
def expected(length: int) -> Drafts:
    """A run whose tokens, votes and experts rounding does not change."""
    model = cases.checkpoint(NAME)
    runs = (
        drafts.drafts(model, cases.prompt(length, seed), CASE.geometry, STEPS, RING)
        for seed in range(100)
    )
    return next(one for one in runs if one.is_clear)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """The drafts of a loop that decides by chance whether to draft, and to check."""
    found: Made = []
    random, inner = Random(0), MtpDrafter.propose

    def watched(
        self: MtpDrafter, lives: Sequence[Generation], step: StepInputs
    ) -> Mapping[int, Draft]:
        drafted = inner(self, lives, step)
        positions = {live.request_id: live.position for live in lives}
        found.extend((request, positions[request], d.tokens[0]) for request, d in drafted.items())
        return drafted

    monkeypatch.setattr(MtpDrafter, "propose", watched)
    monkeypatch.setattr(Payoff, "pays", lambda *_: random.random() < 0.7)
    yield found


VARIANTS = [
    CASE,
    replace(CASE, prefill_chunk=8),
    replace(CASE, prefill_chunk=96, decode_batches=(1, 3)),
    replace(CASE, top_tokens=16),
]
"""A chunk shorter than the ring; a single shot, with requests that move to lower batch slots."""


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_drafts_beside_cancels_and_broken_requests_are_those_of_transformers(
    case: Case, made: Made
) -> None:
    llm, random = LLM(cases.built(case).directory, threads=1), Random(1)
    wants, tokens, broken = {}, dict[int, list[int]](), set[int]()
    for length in (*LENGTHS, *LENGTHS, *LENGTHS, 90):
        want = expected(length)
        request = llm.submit(list(want.run.prompt), PARAMS)
        wants[request], tokens[request] = want, []
    cancelled = {1, 6}
    rows = llm.executor.rows
    assert rows
    while llm.busy:
        for delta in llm.step():
            tokens[delta.request_id] += delta.token_ids
            if delta.finish_reason == "error":
                broken.add(delta.request_id)
        for request in cancelled:
            if len(tokens[request]) > random.randrange(3, 12):
                llm.cancel(request)
        if not broken and len(tokens[0]) > 4:
            for part in rows.buffers(0):
                part.host[:] = np.nan
    assert len(broken) == 1
    for request, want in wants.items():
        whole = list(want.run.tokens[:STEPS])
        complete = request not in cancelled | broken
        assert tokens[request] == (whole if complete else whole[: len(tokens[request])])
    sound = [one for one in made if one[0] not in broken]
    assert len(sound) > 50
    for request, position, token in sound:
        assert token == wants[request].logits[position - 1].argmax(), (request, position)


def outputs(llm: LLM, params: list[SamplingParams]) -> list[tuple[int, ...]]:
    prompts = [list(cases.prompt(length)) for length in (1, 12, 90, 40)]
    done = llm.generate(prompts, params)
    if llm.executor.drafts:
        assert 0 < sum(one.accepted for one in done) < sum(one.drafted for one in done)
    return [one.token_ids for one in done]


def test_output_of_four_tokens_a_step_is_that_without_drafts(made: Made) -> None:
    """Greedy and sampled; prompt lookup drafts up to three tokens, beside MTP's one."""
    params = [replace(PARAMS, temperature=t, seed=3) for t in (0.0, 1.0, 0.7, 0.0)]
    directory = cases.built(replace(CASE, tokens_per_step=4)).directory
    single, several = (LLM(directory, threads=1, speculates=s) for s in (False, True))
    assert outputs(several, params) == outputs(single, params)
    assert made


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"cache_dtype": "fp16"}, {}),
        ({"policy": "streaming"}, {}),
        ({"extend": True}, {"prefill": "blocks"}),
        ({"target": "portable", "top_tokens": 16}, {}),
    ],
    ids=str,
)
def test_output_with_drafts_is_that_without(
    changes: dict[str, Any], options: dict[str, Any], made: Made
) -> None:
    directory = cases.built(replace(CASE, **changes)).directory
    single, several = (LLM(directory, threads=1, speculates=s, **options) for s in (False, True))
    assert outputs(several, [PARAMS] * 4) == outputs(single, [PARAMS] * 4)
    assert made


def test_graphs_are_not_loaded_without_speculation_nor_for_prefill() -> None:
    directory, found = cases.built(CASE).directory, {}
    for name, options in {"none": {"speculates": False}, "prefill": {"role": "prefill"}}.items():
        llm = LLM(directory, threads=1, **options)  # type: ignore[arg-type]
        found[name] = set(llm.executor.backend.operators())  # type: ignore[attr-defined]
        assert not llm.executor.drafts
    assert found["none"] == {"prefill", "compress", "decode", "verify"}
    assert found["prefill"] == {"prefill", "compress"}


def test_a_prompt_that_was_handed_over_is_drafted_from_its_second_token_on(made: Made) -> None:
    directory = cases.built(CASE).directory
    prompts = [tuple(cases.prompt(length)) for length in (1, 12, 90, 40)]
    plain = LLM(directory, threads=1, speculates=False).generate([*map(list, prompts)], PARAMS)
    found = hand_over(*halves_of(CASE), prompts, PARAMS)
    assert found == [one.token_ids for one in plain]
    assert made


def test_parked_rows_and_compressed_outputs_keep_their_tokens(made: Made) -> None:
    """The ring begins behind a parked row."""
    directory = cases.built(replace(CASE, extend=True)).directory
    answers = []
    for speculates in (False, True):
        llm = LLM(directory, threads=1, parked_rows=2, compress_every=10, speculates=speculates)
        first = list(cases.prompt(40))
        told = llm.generate(first, PARAMS)[0].token_ids
        answers.append((told, llm.generate([*first, *told, 5, 6], PARAMS)[0].token_ids))
    assert answers[0] == answers[1] and made
