"""Keeps the rows of the latest prompts, for prompts that begin with one of them.

A turn of a conversation begins with the turns before it, so that it costs its own tokens alone.
What a row keeps was voted for by its own prompt: an answer on a parked row may differ from one on
a fresh prefill.
"""

from collections import OrderedDict
from collections.abc import Sequence

from snapexport.runtime.blocks import ParkedRow


class ParkedRows:
    """Up to `most` rows; the one that was used longest ago goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: OrderedDict[tuple[int, ...], ParkedRow] = OrderedDict()

    def find(self, prompt: Sequence[int]) -> ParkedRow | None:
        """The row of the longest prompt that begins this one, and is shorter."""
        tokens = tuple(prompt)
        found = [key for key in self._rows if len(key) < len(tokens) and tokens[: len(key)] == key]
        if not found:
            return None
        longest = max(found, key=len)
        self._rows.move_to_end(longest)
        return self._rows[longest]

    def keep(self, row: ParkedRow) -> None:
        """Add a row, in the place of those of the turns before it."""
        tokens = row.token_ids
        for key in [key for key in self._rows if tokens[: len(key)] == key]:
            del self._rows[key]
        self._rows[tokens] = row
        while len(self._rows) > self._most:
            self._rows.popitem(last=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(row.nbytes for row in self._rows.values())
