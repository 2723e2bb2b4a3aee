"""Finds the end of a JSON object or list in text that arrives piece by piece."""

import re

_STRUCTURE = re.compile(r'["\\{}\[\]]')


class JsonEnd:
    """Counts brackets outside of texts. Every character is looked at once."""

    def __init__(self, start: int, depth: int = 0) -> None:
        """start: where the value begins. depth: the brackets that were opened before."""
        self._at, self._depth, self._in_text = start, depth, False
        self._end: int | None = None

    def find(self, text: str) -> int | None:
        """The value's end; None if it is not there yet. text: as in the last call, or longer."""
        while self._end is None and (match := _STRUCTURE.search(text, self._at)):
            found, end = match.group(), match.end()
            if found == "\\":
                if end == len(text):
                    self._at = match.start()  # what it escapes is to come
                    return None
                end += self._in_text
            elif found == '"':
                self._in_text = not self._in_text
            elif not self._in_text:
                self._depth += 1 if found in "{[" else -1
            self._at = end
            if self._depth <= 0 and not self._in_text and found in "]}":
                self._end = end
        self._at = max(self._at, len(text))
        return self._end

    def let_go(self) -> int:
        """How much of the last text was looked at; the next one begins after it."""
        length, self._at = self._at, 0
        return length
