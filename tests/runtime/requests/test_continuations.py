"""Continuations: what follows a prompt after it was compressed, fed token by token."""

import numpy as np
import pytest
import torch

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.oracle import masked
from tests.runtime.requests.fake_executor import FakeExecutor, make_limits

PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [40, 41], list(range(100, 130)))
PARAMS = SamplingParams(max_tokens=6)


def fake(**limits: int) -> LLM:
    return LLM.from_executor(FakeExecutor(make_limits(**limits)))


def test_the_greedy_completion_scores_as_greedy() -> None:
    llm = fake()
    answers = [completion.token_ids for completion in llm.generate(PROMPTS, PARAMS)]
    scores = llm.score(PROMPTS, answers)
    assert [score.token_ids for score in scores] == answers
    assert all(score.is_greedy for score in scores)


def test_another_continuation_does_not_score_as_greedy() -> None:
    llm = fake()
    (answer,) = llm.generate(PROMPTS[:1], PARAMS)
    wrong = [*answer.token_ids[:-1], (answer.token_ids[-1] + 1) % 257]
    assert not llm.score(PROMPTS[:1], [wrong])[0].is_greedy


def test_generation_goes_on_from_the_continuation() -> None:
    """The same as from a prompt with these tokens: the fake executor has a full cache."""
    llm, more = fake(), [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    apart = llm.generate(PROMPTS, PARAMS, continuations=more)
    whole = llm.generate([[*a, *b] for a, b in zip(PROMPTS, more, strict=True)], PARAMS)
    assert [one.token_ids for one in apart] == [one.token_ids for one in whole]


def test_scores_equal_transformers_log_probabilities(tiny_build: Build, checkpoint) -> None:
    prompt, more = list(range(3, 40)), [50, 60, 70, 80]
    llm = LLM(tiny_build.directory, baseline=True)
    (score,) = llm.score([prompt], [more])
    with torch.no_grad():
        logits = masked.load(checkpoint, "eager")(torch.tensor([prompt + more])).logits[0]
    expected = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(-1, torch.tensor(more)[:, None])
    assert np.allclose(score.logprobs, expected[:, 0], atol=1e-4)


@pytest.mark.parametrize(
    ("continuations", "message"),
    [
        ([[1], [2]], "2 continuations for 3"),
        ([[1], [], [2]], "is empty"),
        ([[1], [999], [2]], "999"),
    ],
)
def test_a_wrong_continuation_is_refused(continuations: list[list[int]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        fake().score(PROMPTS, continuations)


def test_a_continuation_past_the_last_position_is_refused() -> None:
    with pytest.raises(UserError, match="have 42 tokens, the build has 41 positions"):
        fake(positions=41).score([[1, 2]], [[3] * 40])
