"""Keeps the rows of the latest prompts, for prompts that begin with one of them.

A turn of a conversation begins with the turns before it, and then costs only its own tokens.
What a row keeps was voted for by its own prompt: an answer on a parked row may differ from one on
a fresh prefill.
"""

from collections import OrderedDict
from collections.abc import Sequence

from snapexport.runtime.requests.parked_row import Key, ParkedRow, begins
from snapexport.runtime.requests.row_files import RowFiles


class ParkedRows:
    """Up to `most` rows in memory; the one that was used longest ago goes first.

    files: where all rows are written as well, and those that memory lacks are found.
    """

    def __init__(self, most: int, files: RowFiles | None = None) -> None:
        self._most, self._files = most, files
        self._rows: OrderedDict[Key, ParkedRow] = OrderedDict()

    def find(self, prompt: Sequence[int], least: int = 1, session: str = "") -> ParkedRow | None:
        """The session's row of the longest prompt that begins this one, and is shorter.

        least: tokens that it has to have.
        """
        tokens = tuple(prompt)
        found = [
            held for held in self._begin((session, tokens)) if least <= len(held[1]) < len(tokens)
        ]
        longest = max(found, key=_length, default=(session, ()))
        beyond = max(_length(longest), least - 1)
        if self._files and (row := self._files.longest(tokens, beyond, session)):
            self._hold(row)
            return row
        if longest not in self._rows:
            return None
        self._rows.move_to_end(longest)
        return self._rows[longest]

    def keep(self, row: ParkedRow) -> None:
        """Add a row; it replaces those of the turns before it."""
        self._hold(row)
        if self._files:
            self._files.keep(row)

    def _hold(self, row: ParkedRow) -> None:
        for held in self._begin(row.key):
            del self._rows[held]
        self._rows[row.key] = row
        while len(self._rows) > self._most:
            self._rows.popitem(last=False)

    def _begin(self, key: Key) -> list[Key]:
        """The rows of the same session whose prompts begin one, or equal it."""
        return [held for held in self._rows if begins(held, key)]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(row.row.nbytes for row in self._rows.values())

    def close(self) -> None:
        """Wait until all rows are written to their files."""
        if self._files:
            self._files.close()


def _length(key: Key) -> int:
    return len(key[1])
