"""`kv`: a JSON object of UUIDs (Lost in the Middle, arXiv:2307.03172).

The question begins the answer by the pair's own beginning. The reference stops before the quote
that ends the value: whether that quote is a token or a part of one depends on what follows it.
"""

from collections.abc import Iterator

from snapexport.eval.tasks.draws import Draws
from snapexport.eval.tasks.haystack import Haystack, HaystackTask


class KeyValue(HaystackTask):
    """Find the value of one key of the object."""

    name = "kv"

    def haystack(self, draws: Draws) -> Haystack:
        key, value = draws.uuid(), draws.uuid()
        return Haystack(
            intro="This JSON object holds keys and their values.\n{\n",
            needles=(_pair(key, value),),
            noise=_other_pairs(draws),
            # The last pair of an object has no comma, so a pair that nobody asks for closes it.
            closing=_pair(draws.uuid(), draws.uuid()).replace(",\n", "\n}\n"),
            question=f'What is the value of the key "{key}"?\n"{key}":',
            answers=(value,),
            reference=f' "{value}',
        )


def _pair(key: str, value: str) -> str:
    return f'"{key}": "{value}",\n'


def _other_pairs(draws: Draws) -> Iterator[str]:
    while True:
        yield _pair(draws.uuid(), draws.uuid())
