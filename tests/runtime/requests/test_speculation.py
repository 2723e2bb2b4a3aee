"""Drafts change how many steps a request takes, and never its output."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapexport.methods.mtp.run import MtpDrafter
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import Completion, SamplingParams
from snapexport.runtime.requests.speculation import Acceptance, Kind, Payoff
from tests.builds import build
from tests.runtime.requests.fake_executor import FakeExecutor, make_limits

PAYS = Payoff.pays
PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=6)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every draft is checked, however long a step takes."""
    monkeypatch.setattr(Payoff, "pays", lambda *_: True)
    yield


def fake(tokens_per_step: int, drafts: bool = False, **limits: Any) -> LLM:
    """Three tokens: any two of them repeat soon, and a third of the drafts are right."""
    made = make_limits(vocab_size=3, step_tokens=tokens_per_step, **limits)
    return LLM.from_executor(FakeExecutor(made, drafts=drafts))


def outputs(completions: list[Completion]) -> list[Any]:
    return [(one.token_ids, one.finish_reason, one.logprobs) for one in completions]


@given(
    PROMPTS,
    st.integers(2, 8),
    st.sampled_from([0.0, 1.0]),
    st.integers(1, 30),
    st.integers(31, 70),
    st.booleans(),
    st.randoms(),
)
def test_output_is_that_of_single_tokens(
    prompts: list[list[int]],
    q: int,
    temperature: float,
    most: int,
    positions: int,
    drafts: bool,
    random: Random,
) -> None:
    """Sampled too: the same random numbers choose from the same logits.

    drafts: of both sources, checked or not in any order of steps.
    """
    params = [
        SamplingParams(temperature=temperature, max_tokens=most, seed=seed, logprobs=2)
        for seed in range(len(prompts))
    ]
    limits = {"positions": positions, "eos_token_id": frozenset([2]) if q % 2 else frozenset()}
    single = fake(1, **limits).generate(prompts, params)
    with pytest.MonkeyPatch.context() as patch:
        if drafts:
            patch.setattr(Payoff, "pays", lambda *_: random.random() < 0.7)
        several = fake(q, drafts=drafts, **limits).generate(prompts, params)
    assert outputs(several) == outputs(single)
    for one in several:
        assert 0 <= one.accepted <= one.drafted and one.accepted < len(one.token_ids)


def test_executor_drafts_where_nothing_was_looked_up() -> None:
    llm = LLM.from_executor(FakeExecutor(make_limits(step_tokens=2), drafts=True))
    one = llm.generate([[7]], SamplingParams(max_tokens=31, ignore_eos=True))[0]
    assert isinstance(llm.executor, FakeExecutor)
    assert one.drafted == llm.executor.steps.count("draft")
    assert one.drafted / 2 < one.accepted < one.drafted


@given(PROMPTS, st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(2, 8))
def test_scores_are_those_of_single_tokens(
    prompts: list[list[int]], continuation: list[int], q: int
) -> None:
    given = [continuation] * len(prompts)
    assert fake(q).score(prompts, given) == fake(1).score(prompts, given)


def test_a_continuation_takes_its_tokens_in_fewer_steps() -> None:
    llm = fake(8)
    executor = llm.executor
    llm.score([[1, 2, 0, 1]], [[0, 1, 2, 0, 0, 1, 1, 2, 2, 1, 0, 2, 0, 1, 2, 2, 1]])
    assert isinstance(executor, FakeExecutor)
    assert executor.steps.count("several") == 2  # prefill gives the first of 17 tokens


def test_drafts_of_both_sources_can_be_left_out() -> None:
    executor = FakeExecutor(make_limits(vocab_size=3, step_tokens=4), drafts=True)
    llm = LLM.from_executor(executor, drafters=())
    one = llm.generate([[0, 1, 2] * 8], SamplingParams(max_tokens=30, ignore_eos=True))[0]
    assert one.drafted == 0 and set(executor.steps) == {"prefill", "decode"}


FORMS: list[dict[str, Any]] = [
    {},
    {"cache_dtype": "int8"},
    {"cache_dtype": "fp16"},
    {"policy": "full"},
    {"top_tokens": 8},
    {"extend": True},
    {"target": "portable"},
    {"share_weights": True},
]


@pytest.fixture(scope="module")
def builds(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A build of an option, of so many tokens a step."""
    folder = tmp_path_factory.mktemp("builds")

    def made(options: dict[str, Any], q: int) -> Path:
        name = "-".join(f"{k}={v}" for k, v in options.items()) or "plain"
        small = {} if options.get("policy") == "full" else {"L_recent": 12, "K": 8, "L_obs": 4}
        out = folder / f"{name}-{q}"
        whole: dict[str, Any] = {"L_max": 64, "prefill_chunk": 24} | small | options
        build(checkpoint, out, tokens_per_step=q, **whole)
        return out

    return made


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_a_build_answers_as_one_of_single_tokens(builds: Any, options: dict[str, Any]) -> None:
    """Beside each other, more requests than batch slots, some sampled, some with a penalty."""
    prompts = [[7, 8, 9] * 6, [5], list(range(20, 60)), [11, 12] * 20, [3, 4, 5, 3, 4]]
    room = 30 if options.get("policy") != "full" else 20
    params = [
        SamplingParams(
            temperature=t, max_tokens=room, seed=1, ignore_eos=True, top_k=k, repetition_penalty=r
        )
        for t, k, r in ((0.0, 0, 1.0), (1.0, 0, 1.0), (0.0, 0, 1.2), (0.7, 5, 1.0), (0.0, 0, 0.9))
    ]
    single = LLM(builds(options, 1)).generate(prompts, params)
    several = LLM(builds(options, 4)).generate(prompts, params)
    assert [one.token_ids for one in several] == [one.token_ids for one in single]
    assert sum(one.drafted for one in several) > 0


def test_conversations_go_on_with_drafts(builds: Any) -> None:
    """A second turn begins with the row that the first one left."""
    first, second = [7, 8, 9] * 8, [7, 8, 9] * 8 + [4, 7, 8]
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    answers = []
    for q in (1, 4):
        llm = LLM(builds({"extend": True, "L_sink": 2}, q), parked_rows=2)
        answers.append([llm.generate(turn, params)[0].token_ids for turn in (first, second)])
    assert answers[0] == answers[1]


def test_acceptance_follows_what_was_right() -> None:
    good, bad = Acceptance(0.3), Acceptance(0.3)
    for _ in range(50):
        good.saw(3, 0)
        bad.saw(0, 1)
    assert good.expected(4) > 3.9 and bad.expected(4) < 0.1


def times(single: float, several: float, draft: float) -> Payoff:
    """Measured seconds of each kind of step, of one batch slot."""
    made = Payoff()
    seconds: dict[Kind, float] = {"single": single, "several": several, "draft": draft}
    for _ in range(3):
        for kind, one in seconds.items():
            made.saw(1, kind, one)
    return made


@pytest.mark.parametrize(
    ("several", "draft", "looked_up", "by_mtp", "pays"),
    [
        (1.2, 0.1, 0.0, 0.8, True),
        (1.2, 0.5, 0.0, 0.8, False),  # a draft that takes half a step
        (1.2, 0.1, 0.0, 0.2, False),  # a layer that is seldom right
        (1.8, 0.1, 0.0, 0.8, False),  # a step of several tokens that takes nearly two
        (1.2, 0.3, 2.0, 0.3, False),  # lookup alone is better
        (1.2, 0.0, 2.0, 0.0, True),
    ],
)
def test_time_of_a_draft_counts(
    monkeypatch: pytest.MonkeyPatch,
    several: float,
    draft: float,
    looked_up: float,
    by_mtp: float,
    pays: bool,
) -> None:
    monkeypatch.setattr(Payoff, "pays", PAYS)
    assert times(1.0, several, draft).pays(1, 1, looked_up, by_mtp) == pays


def test_a_layer_that_is_seldom_right_is_tried_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Payoff, "pays", PAYS)
    step_times, drafts = times(1.0, 1.2, 0.1), list[int]()
    drafter = MtpDrafter(FakeExecutor(make_limits(), drafts=True))
    for step in range(2000):
        if step_times.pays(1, 1, 0.0, drafter.expected(0)):
            drafts.append(step)
            drafter.learn(0, 0, 1)
            step_times.saw(1, "several", 1.2)
            step_times.saw(1, "draft", 0.1)
        else:
            drafter.rest(0)
    assert len(drafts) < 2000 * 0.03
    assert drafts[-1] > 1500
