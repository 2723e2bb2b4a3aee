"""The words of the needle-in-a-haystack tasks (RULER, arXiv:2404.06654), which five tasks share.

They differ from RULER's: wording and keys are our own, prose of nine sentences stands for its
noise and for its essays, and the beginning of the answer ends as the needle does ("for X is"),
where RULER puts "mentioned in the provided text" between.
"""

from collections.abc import Sequence

from snapexport.eval.tasks.wording import listed

INTRO = "Special magic numbers are hidden in this text. Keep them in mind.\n"
DIGITS = 7
NEEDLES = 4  # RULER: values of niah_multivalue, queries of niah_multiquery


def needle(key: str, number: str) -> str:
    """The line that gives a key its number."""
    return f"The special magic number for {key} is {number}.\n"


def ask(key: str) -> str:
    """Ask for the number of a key, and begin the answer."""
    return (
        f"What is the special magic number for {key} in the text?\n"
        f"The special magic number for {key} is"
    )


def ask_many(keys: Sequence[str]) -> str:
    """Ask for all the numbers of one or more keys, and begin the answer."""
    return (
        f"What are the special magic numbers for {listed(keys)} in the text?\n"
        f"The special magic numbers for {listed(keys)} are"
    )
