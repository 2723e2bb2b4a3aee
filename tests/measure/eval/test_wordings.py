"""Tasks that count words, ask about a passage, or want a line of code: their answers are right."""

import re
from collections import Counter
from typing import Any

import pytest
from tokenizers import Tokenizer

from snapexport.measure.eval.sample import Sample
from snapexport.measure.eval.tasks import TASKS
from snapexport.vault import CHECKPOINT

COUNTED = "cwe", "fwe"


def sample(name: str, seed: int = 1, tokens: int = 1024) -> Sample:
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    return TASKS[name].sample(tokenizer, seed, tokens)


@pytest.mark.parametrize("tokens", [200, 1024, 8192])
@pytest.mark.parametrize("name", COUNTED)
def test_counted_answers_are_the_most_frequent_words_at_every_length(
    name: str, tokens: int
) -> None:
    one = sample(name, tokens=tokens)
    counts = Counter(one.context.split("\n", 1)[1].split())
    best = counts.most_common(len(one.answers) + 1)
    assert {word for word, _ in best[:-1]} == set(one.answers)
    assert best[-2][1] > best[-1][1]
    if name == "fwe":  # the question asks for no order, but the reference has the words' own
        assert tuple(word for word, _ in best[:-1]) == one.answers


def test_a_passage_answers_its_question_and_another_passage_does_not() -> None:
    made = [sample("qa", seed) for seed in range(9)]
    asked = {one.question.splitlines()[0][-5:]: one for one in made}
    assert len(asked) > 2
    for one in asked.values():
        (name,) = set(re.findall(r"[A-Z]\w{5}m\b", one.question))
        first, second = re.findall(r".* was born in .*\n", one.context)
        told = first if first.startswith(name) else second
        assert one.answers[0] in told and one.answers[0] not in one.context.replace(told, "")


def test_the_asked_function_is_python_and_returns_the_answer() -> None:
    one = sample("function", tokens=2048)
    defined: dict[str, Any] = {}
    exec(one.context, defined)
    name = re.findall(r"function (\w+)", one.question)[0]
    assert defined[name](31, 10**9) == eval(one.answers[0], {"a": 31, "b": 10**9})
    assert len(defined) > 20
