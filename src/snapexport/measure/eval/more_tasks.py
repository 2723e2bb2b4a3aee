"""Defines tasks whose answer is counted over the whole text, or is read from a passage or code.

tasks.py lists them, and says what all tasks have in common.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from snapexport.measure.eval.haystack import Draws, Haystack, endless

COMMON = 10
"""Words that RULER's cwe asks for."""


def common_words(draws: Draws) -> Haystack:
    """The ten words that come again and again among others (RULER's cwe).

    Unlike there, lines are not numbered, and no solved example stands before them.
    """
    words = draws.words()
    common, others = words[:COMMON], cycle(words[COMMON:])
    turn = cycle(common)

    def line() -> str:
        return _shuffled(draws, [*islice(turn, 3), *islice(others, 3)])

    return Haystack(
        intro="Below are lines of words. Some words come much more often than others.\n",
        needles=(_shuffled(draws, common),),
        noise=endless(line),
        question=f"What are the {COMMON} most common words in these lines?\n"
        f"The {COMMON} most common words are",
        answers=tuple(common),
    )


def frequent_words(draws: Draws) -> Haystack:
    """The three most frequent of many coded words (RULER's fwe, whose counts follow Zipf's law)."""
    first, second, third = (draws.code() for _ in range(3))
    frequent = [first] * 3 + [second] * 2 + [third]

    def line() -> str:
        return _shuffled(draws, [*frequent, draws.code(), draws.code()])

    return Haystack(
        intro="Below is a coded text. Keep track of how often each coded word comes.\n",
        needles=(_shuffled(draws, frequent),),
        noise=endless(line),
        question="What are the three most frequent words of the coded text?\n"
        "The three most frequent words are",
        answers=(first, second, third),
    )


def passage_question(draws: Draws) -> Haystack:
    """A fact of a short passage about one person, among prose and a passage about another one.

    It stands for RULER's qa, whose passages are SQuAD's.
    """
    asked, other = _person(draws), _person(draws)
    question, answer = draws.rng.choice(_questions(*asked))
    return Haystack(
        intro="Read this text. A question about it follows.\n",
        needles=(_passage(*asked), _passage(*other)),
        noise=draws.prose(),
        question=question,
        answers=(answer,),
    )


def function(draws: Draws) -> Haystack:
    """The line of one function of many, copied, for models of code (like RepoQA)."""
    name, code = _function(draws)
    return Haystack(
        intro="# The functions of a Python module.\n",
        needles=(f"def {name}(a, b): return {code}\n",),
        noise=_functions(draws),
        question=f"Copy the line of this module that defines the function {name}.\n"
        f"def {name}(a, b): return",
        answers=(code,),
    )


def _shuffled(draws: Draws, words: Sequence[str]) -> str:
    return " ".join(draws.rng.sample(words, len(words))) + "\n"


def _person(draws: Draws) -> tuple[str, str, str, str]:
    """A name, a place of birth, a year and a later place; no two are alike."""
    return draws.name(), draws.name(), "1" + draws.number(3), draws.name()


def _passage(name: str, born: str, year: str, later: str) -> str:
    return (
        f"{name} was born in {born}, where the family had a mill. The mill burned down in {year}. "
        f"So {name} moved to {later} and opened a bakery by the harbour.\n"
    )


def _questions(name: str, born: str, year: str, later: str) -> list[tuple[str, str]]:
    """What can be asked about a person, each with the answer."""
    return [
        (f"In which town was {name} born?\n{name} was born in", born),
        (f"In which town did {name} open a bakery?\n{name} opened a bakery in", later),
        (f"In which year did {name} lose the mill?\n{name} lost the mill in", year),
    ]


def _function(draws: Draws) -> tuple[str, str]:
    """A function's name and the expression that it returns."""
    name = draws.key().replace("-", "_")
    return name, f"a * {draws.number(4)} + b // {draws.number(4)}"


def _functions(draws: Draws) -> Iterator[str]:
    while True:
        name, code = _function(draws)
        yield f"def {name}(a, b): return {code}\n"
