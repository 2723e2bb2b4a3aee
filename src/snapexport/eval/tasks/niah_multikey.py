"""`niah_multikey`: one key among others that have numbers too (RULER's niah_multikey_2)."""

from collections.abc import Iterator

from snapexport.eval.tasks.draws import Draws
from snapexport.eval.tasks.haystack import Haystack, HaystackTask
from snapexport.eval.tasks.niah import DIGITS, INTRO, ask, needle


class NiahMultikey(HaystackTask):
    """Find the number of one key where every line gives one to a key."""

    name = "niah_multikey"

    def haystack(self, draws: Draws) -> Haystack:
        key, number = draws.key(), draws.number(DIGITS)
        return Haystack(
            intro=INTRO,
            needles=(needle(key, number),),
            noise=_other_keys(draws),
            question=ask(key),
            answers=(number,),
            reference=f" {number}",
        )


def _other_keys(draws: Draws) -> Iterator[str]:
    while True:
        yield needle(draws.key(), draws.number(DIGITS))
