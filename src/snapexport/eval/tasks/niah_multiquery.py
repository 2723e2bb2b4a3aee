"""`niah_multiquery`: several keys, asked for at once, in prose (RULER's niah_multiquery)."""

from snapexport.eval.tasks.draws import Draws
from snapexport.eval.tasks.haystack import Haystack, HaystackTask
from snapexport.eval.tasks.niah import DIGITS, INTRO, NEEDLES, ask_many, needle
from snapexport.eval.tasks.wording import listed, prose


class NiahMultiquery(HaystackTask):
    """Find the numbers of all the keys; the question has its own order, and the reference that."""

    def __init__(self, name: str = "niah_multiquery", queries: int = NEEDLES) -> None:
        self.name, self._queries = name, queries

    def haystack(self, draws: Draws) -> Haystack:
        pairs = [(draws.key(), draws.number(DIGITS)) for _ in range(self._queries)]
        asked = draws.rng.sample(pairs, len(pairs))
        numbers = tuple(number for _, number in asked)
        return Haystack(
            intro=INTRO,
            needles=tuple(needle(key, number) for key, number in pairs),
            noise=prose(draws.rng),
            question=ask_many([key for key, _ in asked]),
            answers=numbers,
            reference=f" {listed(numbers)}",
        )
