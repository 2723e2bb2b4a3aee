"""Words the tasks that hide needles in a haystack: what is hidden, what around it, what is asked.

Wording and keys differ from the papers'. A question ends with the beginning of its answer. A
reference stops before a closing quote or bracket: whether that is a token of its own depends on
what follows it. Knows no model and no tokenizer.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice, pairwise

from snapexport.measure.eval.haystack import Draws, Haystack, endless, join_words

NEEDLES = 4
"""RULER's values of niah_multivalue and queries of niah_multiquery."""

COMMON = 10
"""Words that RULER's cwe asks for."""

_MAGIC_INTRO = "Special magic numbers are hidden in this text. Keep them in mind.\n"
_MAGIC_DIGITS = 7


def niah_single(draws: Draws) -> Haystack:
    """One key and its number, in prose (RULER, arXiv:2404.06654: niah_single_1)."""
    return _one_magic_number(draws, lambda: draws.prose())


def niah_multikey(draws: Draws) -> Haystack:
    """One key among others that have numbers too (RULER's niah_multikey_2)."""
    others = endless(lambda: _magic_number(draws.key(), draws.number(_MAGIC_DIGITS)))
    return _one_magic_number(draws, lambda: others)


def niah_multivalue(draws: Draws) -> Haystack:
    """One key with four numbers, asked for in the order of the text (RULER's niah_multivalue)."""
    key = draws.key()
    numbers = tuple(draws.number(_MAGIC_DIGITS) for _ in range(NEEDLES))
    return Haystack(
        intro=_MAGIC_INTRO,
        needles=tuple(f"One special magic number for {key} is {number}.\n" for number in numbers),
        noise=draws.prose(),
        question=_ask_many([key]),
        answers=numbers,
    )


def niah_multiquery(draws: Draws, queries: int = NEEDLES) -> Haystack:
    """Several keys, asked for at once in another order (RULER's niah_multiquery)."""
    pairs = [(draws.key(), draws.number(_MAGIC_DIGITS)) for _ in range(queries)]
    wanted = draws.rng.sample(pairs, len(pairs))
    numbers = tuple(number for _, number in wanted)
    return Haystack(
        intro=_MAGIC_INTRO,
        needles=tuple(_magic_number(key, number) for key, number in pairs),
        noise=draws.prose(),
        question=_ask_many([key for key, _ in wanted]),
        answers=numbers,
    )


def niah_phrase(draws: Draws, words: int) -> Haystack:
    """One key and a phrase of `words` words, so that the answer is long (not RULER's)."""
    key, phrase = draws.key(), draws.phrase(words)
    return Haystack(
        intro="Secret phrases are hidden in this text. Keep them in mind.\n",
        needles=(f"The secret phrase for {key} is: {phrase}.\n",),
        noise=draws.prose(),
        question=f"What is the secret phrase for {key} in the text?\n"
        f"The secret phrase for {key} is:",
        answers=(phrase,),
    )


def variable_tracking(draws: Draws) -> Haystack:
    """A value goes through five variables, and all five are asked for (RULER's vt).

    Unlike there, no solved example comes before the text.
    """
    value = draws.number(5)
    names = tuple(draws.variable() for _ in range(5))
    copies = (f"VAR {name} = VAR {source}\n" for source, name in pairwise(names))
    return Haystack(
        intro="Assignments to variables are hidden in this text. Keep track of them.\n",
        needles=(f"VAR {names[0]} = {value}\n", *copies),
        noise=draws.prose(),
        question=f"Which variables have the value {value}, directly or through other variables?\n"
        f"The {len(names)} variables with the value {value} are",
        answers=names,
    )


def key_value(draws: Draws) -> Haystack:
    """The value of one key of a JSON object of UUIDs (Lost in the Middle, arXiv:2307.03172)."""
    key, value = draws.uuid(), draws.uuid()
    return Haystack(
        intro="This JSON object holds keys and their values.\n{\n",
        needles=(_pair(key, value),),
        noise=endless(lambda: _pair(draws.uuid(), draws.uuid())),
        # The last pair of an object has no comma: a pair that nobody asks for closes it.
        closing=_pair(draws.uuid(), draws.uuid()).replace(",\n", "\n}\n"),
        question=f'What is the value of the key "{key}"?\n"{key}":',
        answers=(value,),
        opening=' "',
    )


def passkey(draws: Draws) -> Haystack:
    """A number, twice in one line among prose (Landmark Attention, arXiv:2305.16300)."""
    number = draws.number(5)
    return Haystack(
        intro="A pass key is hidden in this text. Find it and keep it in mind.\n",
        needles=(f"The pass key is {number}. Do not forget: {number} is the pass key.\n",),
        noise=draws.prose(),
        question="What is the pass key?\nThe pass key is",
        answers=(number,),
    )


def lines(draws: Draws) -> Haystack:
    """The number of one named line among many (LongEval's line retrieval).

    Numbers have six digits and names three words, so that no two lines share one.
    """
    key, number = draws.key(), draws.number(6)
    return Haystack(
        intro="Every line of this register has a content. Keep all of them in mind.\n",
        needles=(_line(key, number),),
        noise=endless(lambda: _line(draws.key(), draws.number(6))),
        question=f"What is the content of line {key}?\nline {key}: content is",
        answers=(number,),
        opening=" <",
    )


def common_words(draws: Draws) -> Haystack:
    """The ten words that come again and again among others (RULER's cwe).

    Unlike there, lines are not numbered, and no solved example comes before them.
    """
    words = draws.words()
    common, others = words[:COMMON], cycle(words[COMMON:])
    turn = cycle(common)

    def line() -> str:
        return _shuffle(draws, [*islice(turn, 3), *islice(others, 3)])

    return Haystack(
        intro="Below are lines of words. Some words come much more often than others.\n",
        needles=(_shuffle(draws, common),),
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
        return _shuffle(draws, [*frequent, draws.code(), draws.code()])

    return Haystack(
        intro="Below is a coded text. Keep track of how often each coded word comes.\n",
        needles=(_shuffle(draws, frequent),),
        noise=endless(line),
        question="What are the three most frequent words of the coded text?\n"
        "The three most frequent words are",
        answers=(first, second, third),
    )


def passage_question(draws: Draws) -> Haystack:
    """A fact of a short passage about one person, among prose and a passage about another one.

    It takes the place of RULER's qa, whose passages are SQuAD's.
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


def _one_magic_number(draws: Draws, noise: Callable[[], Iterator[str]]) -> Haystack:
    # The needle is drawn first: prose draws its first sentence when it is called.
    key, number = draws.key(), draws.number(_MAGIC_DIGITS)
    return Haystack(
        intro=_MAGIC_INTRO,
        needles=(_magic_number(key, number),),
        noise=noise(),
        question=f"What is the special magic number for {key} in the text?\n"
        f"The special magic number for {key} is",
        answers=(number,),
    )


def _magic_number(key: str, number: str) -> str:
    return f"The special magic number for {key} is {number}.\n"


def _ask_many(keys: Sequence[str]) -> str:
    return (
        f"What are the special magic numbers for {join_words(keys)} in the text?\n"
        f"The special magic numbers for {join_words(keys)} are"
    )


def _pair(key: str, value: str) -> str:
    return f'"{key}": "{value}",\n'


def _line(key: str, number: str) -> str:
    return f"line {key}: content is <{number}>\n"


def _shuffle(draws: Draws, words: Sequence[str]) -> str:
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
    """Questions about a person, each with the answer."""
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
