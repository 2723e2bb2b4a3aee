"""`niah_multivalue`: one key with four numbers, in prose (RULER's niah_multivalue)."""

from snapexport.eval.tasks.draws import Draws
from snapexport.eval.tasks.haystack import Haystack, HaystackTask
from snapexport.eval.tasks.niah import DIGITS, INTRO, NEEDLES, ask_many
from snapexport.eval.tasks.wording import listed, prose


class NiahMultivalue(HaystackTask):
    """Find all the numbers of a key; the reference has them in the order of the text."""

    name = "niah_multivalue"

    def haystack(self, draws: Draws) -> Haystack:
        key = draws.key()
        numbers = tuple(draws.number(DIGITS) for _ in range(NEEDLES))
        return Haystack(
            intro=INTRO,
            needles=tuple(f"One special magic number for {key} is {one}.\n" for one in numbers),
            noise=prose(draws.rng),
            question=ask_many([key]),
            answers=numbers,
            reference=f" {listed(numbers)}",
        )
