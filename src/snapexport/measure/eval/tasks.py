"""Defines the long-context tasks: the wording of each, and what it hides.

Samples come from a seed, and from documents where they are given; no model. A question ends with
the beginning of its answer. A reference stops before a closing quote or bracket: whether that is a
token of its own depends on what follows it. Wording and keys differ from the papers', and without
documents prose of nine sentences stands for RULER's noise and essays.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from random import Random

from tokenizers import Tokenizer

from snapexport.errors import UserError
from snapexport.measure.eval.haystack import Draws, Haystack, HaystackTask, Prose, endless, listed
from snapexport.measure.eval.more_tasks import (
    common_words,
    frequent_words,
    function,
    passage_question,
)
from snapexport.measure.eval.sample import (
    FIRST_GUESS,
    TASKS,
    Ids,
    Task,
    Text,
    continuing_ids,
    most,
    require_spells,
)
from snapexport.vault.prompts import (
    FIRST_TRAINING_SEED,
    HEADER,
    make_prompt,
    make_register,
    question,
)

__all__ = ["TASKS", "filler", "tasks_in"]

NEEDLES = 4
"""RULER's values of niah_multivalue and queries of niah_multiquery."""

PHRASES = 4, 12, 32
"""Words of the answers of the tasks phrase_N."""

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
    """One key and a phrase of so many words, so that the answer is long (not RULER's)."""
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

    Unlike there, no solved example stands before the text.
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
    """A number that stands twice in one line amid prose (Landmark Attention, arXiv:2305.16300)."""
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


class LongAnswer(HaystackTask):
    """niah_multiquery with so many keys that the answer outgrows a ring. Not RULER's.

    The last numbers are looked up after the ring has been overwritten.
    """

    def answering(self, tokenizer: Tokenizer, seed: int, answer_tokens: int) -> Task:
        """With the fewest keys, at least four, whose reference is long enough."""
        require_spells(tokenizer, self)

        def task(more: int) -> HaystackTask:
            asked = partial(niah_multiquery, queries=NEEDLES + more)
            return HaystackTask(self.name, asked, self.prose)

        def reference_tokens(more: int) -> int:
            hay = task(more).haystack(Draws(self.name, seed))
            return len(continuing_ids(tokenizer, hay.question, hay.reference))

        if reference_tokens(0) >= answer_tokens:
            return task(0)
        return task(1 + most(reference_tokens, answer_tokens - 1, guess=NEEDLES))


class Vault(Task):
    """The four words of one entry of a register: the bundled checkpoint's task.

    src/snapexport/vault/README.md describes it.

    Lengths are met exactly with the checkpoint's tokenizer; with others the longest register that
    fits is searched. A depth is a place in the order of the entries.
    """

    name = "vault"
    SHORTEST = 38
    """Tokens from which on prose of any length can be made around the entries of a prompt."""

    def texts(self, seed: int, depth: float | None) -> Callable[[int], Text]:
        """By the tokens above SHORTEST."""
        if seed >= FIRST_TRAINING_SEED:
            raise UserError(
                f"the bundled checkpoint was trained on prompts of seeds such as {seed}",
                f"use a seed below {FIRST_TRAINING_SEED}",
            )

        def text(more: int) -> Text:
            prompt = make_prompt(seed, self.SHORTEST + more, depth=depth)
            ending, needle = question(prompt.key), f"{prompt.key}:{prompt.answer}\n"
            context = prompt.text.removesuffix(ending)
            return Text(context, needle, ending, (prompt.answer.strip(),), prompt.answer)

        return text

    def guess(self, tokens: int) -> int:
        return tokens - self.SHORTEST

    def noise(self, seed: int) -> Iterator[str]:
        rng = Random(f"{self.name} {seed}")
        while True:
            register = make_register(rng, 2048, entries=1)
            lines = register.text.removeprefix(HEADER).splitlines(keepends=True)
            yield from (line for line in lines if ":" not in line)

    def excerpt(self) -> str:
        prompt = make_prompt(seed=0, target_tokens=512)
        return prompt.text + prompt.answer


def tasks_in(prose: Prose) -> dict[str, Task]:
    """Every task by name; those that hide needles in prose hide them in this one."""
    return {
        name: replace(task, prose=prose) if isinstance(task, HaystackTask) else task
        for name, task in TASKS.items()
    }


def filler(tokenizer: Tokenizer, task: Task, seed: int, tokens: int) -> Ids:
    """Whole lines of a task's noise, at least `tokens` tokens and at most a line more.

    They contradict no needle of the same seed's sample. No special tokens.
    """
    require_spells(tokenizer, task)
    source = task.noise(seed)
    noise: list[str] = []

    def ids(count: int) -> Ids:
        noise.extend(islice(source, max(0, count - len(noise))))
        return continuing_ids(tokenizer, "\n", "".join(noise[:count]))

    count = most(lambda n: len(ids(n)), tokens - 1, FIRST_GUESS) + 1
    return ids(count) if tokens > 0 else ()


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
        f"What are the special magic numbers for {listed(keys)} in the text?\n"
        f"The special magic numbers for {listed(keys)} are"
    )


def _pair(key: str, value: str) -> str:
    return f'"{key}": "{value}",\n'


def _line(key: str, number: str) -> str:
    return f"line {key}: content is <{number}>\n"


for _task in (
    HaystackTask("niah_single", niah_single),
    HaystackTask("niah_multikey", niah_multikey),
    HaystackTask("niah_multivalue", niah_multivalue),
    HaystackTask("niah_multiquery", niah_multiquery),
    HaystackTask("vt", variable_tracking),
    HaystackTask("kv", key_value),
    HaystackTask("passkey", passkey),
    HaystackTask("lines", lines),
    Vault(),
    HaystackTask("cwe", common_words),
    HaystackTask("fwe", frequent_words),
    HaystackTask("qa", passage_question),
    HaystackTask("function", function),
    LongAnswer("long_answer", niah_multiquery),
    *(HaystackTask(f"phrase_{words}", partial(niah_phrase, words=words)) for words in PHRASES),
):
    TASKS[_task.name] = _task
