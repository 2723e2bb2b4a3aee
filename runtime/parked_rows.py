"""Keeps the rows of the latest prompts, for prompts that begin with one of them.

A turn of a conversation begins with the turns before it, so that it costs its own tokens alone.
What a row keeps was voted for by its own prompt: an answer on a parked row may differ from one on
a fresh prefill.
"""

from collections import OrderedDict
from collections.abc import Sequence

from snapexport.runtime.blocks import ParkedRow
from snapexport.runtime.row_files import RowFiles


class ParkedRows:
    """Up to `most` rows in memory; the one that was used longest ago goes first.

    files: where all rows are written as well, and those that memory lacks are found.
    """

    def __init__(self, most: int, files: RowFiles | None = None) -> None:
        self._most, self._files = most, files
        self._rows: OrderedDict[tuple[int, ...], ParkedRow] = OrderedDict()

    def find(self, prompt: Sequence[int], least: int = 1) -> ParkedRow | None:
        """The row of the longest prompt that begins this one, and is shorter.

        least: tokens that it has to have.
        """
        tokens = tuple(prompt)
        found = [
            key
            for key in self._rows
            if least <= len(key) < len(tokens) and tokens[: len(key)] == key
        ]
        longest = max(found, key=len, default=())
        if self._files and (row := self._files.longest(tokens, max(len(longest), least - 1))):
            self._hold(row)
            return row
        if not longest:
            return None
        self._rows.move_to_end(longest)
        return self._rows[longest]

    def keep(self, row: ParkedRow) -> None:
        """Add a row, in the place of those of the turns before it."""
        self._hold(row)
        if self._files:
            self._files.keep(row)

    def _hold(self, row: ParkedRow) -> None:
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

    def close(self) -> None:
        """Wait until all rows are written to their files."""
        if self._files:
            self._files.close()
