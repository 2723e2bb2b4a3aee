"""Lists the long-context tasks, and makes those that are more than a wording.

Samples come from a seed, and from documents where they are given; no model. Without documents prose
of nine sentences takes the place of RULER's noise and essays.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from random import Random

from tokenizers import Tokenizer

from snapexport.compare.documents import Ids, Prose
from snapexport.errors import UserError
from snapexport.measure.eval import wordings
from snapexport.measure.eval.haystack import Draws, HaystackTask
from snapexport.measure.eval.sample import (
    FIRST_GUESS,
    TASKS,
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

PHRASES = 4, 12, 32
"""Words of the answers of the tasks phrase_N."""


class LongAnswer(HaystackTask):
    """niah_multiquery with enough keys that the answer outgrows a ring. Not RULER's.

    The last numbers are looked up after the ring has been overwritten.
    """

    def answering(self, tokenizer: Tokenizer, seed: int, answer_tokens: int) -> Task:
        """With the fewest keys, at least four, whose reference is long enough."""
        require_spells(tokenizer, self)

        def task(more: int) -> HaystackTask:
            asked = partial(wordings.niah_multiquery, queries=wordings.NEEDLES + more)
            return HaystackTask(self.name, asked, self.prose)

        def reference_tokens(more: int) -> int:
            hay = task(more).haystack(Draws(self.name, seed))
            return len(continuing_ids(tokenizer, hay.question, hay.reference))

        if reference_tokens(0) >= answer_tokens:
            return task(0)
        return task(1 + most(reference_tokens, answer_tokens - 1, guess=wordings.NEEDLES))


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
        """The text of a seed by its tokens above SHORTEST."""
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


for _task in (
    HaystackTask("niah_single", wordings.niah_single),
    HaystackTask("niah_multikey", wordings.niah_multikey),
    HaystackTask("niah_multivalue", wordings.niah_multivalue),
    HaystackTask("niah_multiquery", wordings.niah_multiquery),
    HaystackTask("vt", wordings.variable_tracking),
    HaystackTask("kv", wordings.key_value),
    HaystackTask("passkey", wordings.passkey),
    HaystackTask("lines", wordings.lines),
    Vault(),
    HaystackTask("cwe", wordings.common_words),
    HaystackTask("fwe", wordings.frequent_words),
    HaystackTask("qa", wordings.passage_question),
    HaystackTask("function", wordings.function),
    LongAnswer("long_answer", wordings.niah_multiquery),
    *(
        HaystackTask(f"phrase_{words}", partial(wordings.niah_phrase, words=words))
        for words in PHRASES
    ),
):
    TASKS[_task.name] = _task
