"""The usage of OpenAI's API counts each prompt once, and what a parked row held of it."""

from snapexport.runtime.requests.request import OutputDelta
from snapexport.serving.openai.writers.choices import Usage


def test_cached_tokens_of_a_prompt_count_once_for_all_its_answers() -> None:
    usage = Usage(prompt_tokens=30, answers_each=2)
    for index in range(4):  # two prompts of two answers
        usage.add(index, OutputDelta(index, "a", (5,), cached_tokens=10))
        usage.add(index, OutputDelta(index, "b", (6, 7), "stop"))
    assert usage.as_json() == {
        "prompt_tokens": 30,
        "completion_tokens": 12,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 20},
    }


def test_a_prompt_without_a_parked_row_has_no_cached_tokens() -> None:
    usage = Usage(prompt_tokens=3, answers_each=1)
    usage.add(0, OutputDelta(0, "a", (5,), "stop"))
    assert usage.as_json() == {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
