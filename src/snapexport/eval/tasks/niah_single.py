"""`niah_single`: one key and its number, in prose (RULER's niah_single_1)."""

from snapexport.eval.tasks.draws import Draws
from snapexport.eval.tasks.haystack import Haystack, HaystackTask
from snapexport.eval.tasks.niah import DIGITS, INTRO, ask, needle
from snapexport.eval.tasks.wording import prose


class NiahSingle(HaystackTask):
    """Find the one number in the prose."""

    name = "niah_single"

    def haystack(self, draws: Draws) -> Haystack:
        key, number = draws.key(), draws.number(DIGITS)
        return Haystack(
            intro=INTRO,
            needles=(needle(key, number),),
            noise=prose(draws.rng),
            question=ask(key),
            answers=(number,),
            reference=f" {number}",
        )
