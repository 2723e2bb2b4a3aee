"""`lines`: a register of numbered content, a line each (LongEval's line retrieval).

As there, every line has a name and a number, and one line's number is asked for. Ours has six
digits, so that no two lines share it, and names of three words. The reference stops before the
bracket that ends the number: with the newline after it, that can be another token.
"""

from collections.abc import Iterator

from snapexport.eval.tasks.draws import Draws
from snapexport.eval.tasks.haystack import Haystack, HaystackTask

DIGITS = 6


class Lines(HaystackTask):
    """Find the content of one line among lines that look like it."""

    name = "lines"

    def haystack(self, draws: Draws) -> Haystack:
        key, number = draws.key(), draws.number(DIGITS)
        return Haystack(
            intro="Every line of this register has a content. Keep all of them in mind.\n",
            needles=(_line(key, number),),
            noise=_other_lines(draws),
            question=f"What is the content of line {key}?\nline {key}: content is",
            answers=(number,),
            reference=f" <{number}",
        )


def _line(key: str, number: str) -> str:
    return f"line {key}: content is <{number}>\n"


def _other_lines(draws: Draws) -> Iterator[str]:
    while True:
        yield _line(draws.key(), draws.number(DIGITS))
