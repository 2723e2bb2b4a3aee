"""`vt`: variable tracking (RULER, arXiv:2404.06654): one chain of assignments, in prose.

As in RULER one value goes through five variables, and all five are asked for. Unlike there, no
solved example stands before the text, and the wording is our own.
"""

from itertools import pairwise

from snapexport.eval.tasks.draws import Draws
from snapexport.eval.tasks.haystack import Haystack, HaystackTask
from snapexport.eval.tasks.wording import listed, prose

HOPS = 4
DIGITS = 5


class VariableTracking(HaystackTask):
    """Name every variable that a value has reached."""

    name = "vt"

    def haystack(self, draws: Draws) -> Haystack:
        value = draws.number(DIGITS)
        names = tuple(draws.variable() for _ in range(HOPS + 1))
        copies = (f"VAR {name} = VAR {source}\n" for source, name in pairwise(names))
        return Haystack(
            intro="Assignments to variables are hidden in this text. Keep track of them.\n",
            needles=(f"VAR {names[0]} = {value}\n", *copies),
            noise=prose(draws.rng),
            question=_question(value, len(names)),
            answers=names,
            reference=f" {listed(names)}",
        )


def _question(value: str, variables: int) -> str:
    return (
        f"Which variables have the value {value}, directly or through other variables?\n"
        f"The {variables} variables with the value {value} are"
    )
