"""`passkey`: a number amid prose (Landmark Attention, arXiv:2305.16300).

The number stands twice in its line, as it does there; the wording is our own, and the number has
five digits always.
"""

from snapexport.eval.tasks.draws import Draws
from snapexport.eval.tasks.haystack import Haystack, HaystackTask
from snapexport.eval.tasks.wording import prose

DIGITS = 5


class Passkey(HaystackTask):
    """Find the pass key."""

    name = "passkey"

    def haystack(self, draws: Draws) -> Haystack:
        number = draws.number(DIGITS)
        return Haystack(
            intro="A pass key is hidden in this text. Find it and keep it in mind.\n",
            needles=(f"The pass key is {number}. Do not forget: {number} is the pass key.\n",),
            noise=prose(draws.rng),
            question="What is the pass key?\nThe pass key is",
            answers=(number,),
            reference=f" {number}",
        )
