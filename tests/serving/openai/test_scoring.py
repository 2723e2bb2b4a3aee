"""Log probabilities of a prompt's own tokens: `echo` with `logprobs`."""

from typing import Any

import openai
import pytest

from tests.runtime.tokenizers_for_tests import byte_level
from tests.serving.openai.conftest import Served

PROMPT = byte_level().encode("Once upon").ids


def scored(client: openai.OpenAI, **body: Any) -> Any:
    given = {"model": "model", "prompt": PROMPT, "echo": True, "logprobs": 1, "temperature": 0}
    return client.completions.create(**given | {"max_tokens": 1} | body)


def test_prompts_tokens_have_the_runtimes_probabilities(
    served: Served, client: openai.OpenAI
) -> None:
    answer = scored(client)
    (choice,) = answer.choices
    logprobs = choice.logprobs
    (score,) = served.alone.score([PROMPT[:1]], [PROMPT[1:]])
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert logprobs.token_logprobs[1:-1] == list(score.logprobs)
    assert logprobs.tokens[:-1] == list("Once upon")
    assert logprobs.text_offset[:-1] == list(range(9))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (9, 1)
    assert choice.text.startswith("Once upon") and len(logprobs.tokens) == 10


def test_greediest_token_is_given_beside_each(served: Served, client: openai.OpenAI) -> None:
    """As lm-evaluation-harness reads it: greedy if the token has the highest of the top ones."""
    told = scored(client).choices[0].logprobs
    pairs = zip(told.token_logprobs[1:], told.top_logprobs[1:], strict=True)
    greedy = [one == max(top.values()) for one, top in pairs]
    (score,) = served.alone.score([PROMPT[:1]], [PROMPT[1:]])
    assert all(greedy[:-1]) == score.is_greedy and greedy[-1]


def test_nothing_is_generated_for_max_tokens_0(client: openai.OpenAI) -> None:
    answer = scored(client, max_tokens=0, prompt=[PROMPT, PROMPT[:4]])
    assert [len(choice.logprobs.tokens) for choice in answer.choices] == [9, 4]
    assert [choice.text for choice in answer.choices] == ["Once upon", "Once"]
    assert answer.usage.completion_tokens == 0
    assert {choice.finish_reason for choice in answer.choices} == {"length"}


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_streamed_scores_join_to_the_whole_ones(client: openai.OpenAI, max_tokens: int) -> None:
    whole = scored(client, max_tokens=max_tokens).choices[0]
    chunks = [chunk.choices[0] for chunk in scored(client, max_tokens=max_tokens, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [getattr(chunk.logprobs, name) for chunk in chunks if chunk.logprobs]
        assert [one for part in parts for one in part] == getattr(whole.logprobs, name)
