"""Finds the end of a JSON object or list in text that arrives piece by piece."""

import re

_STRUCTURE = re.compile(r'["\\{}\[\]]')


class JsonEnd:
    """Counts brackets outside of texts. Every character is looked at once."""

    def __init__(self, start: int) -> None:
        """start: where the value begins."""
        self._at, self._depth, self._in_text = start, 0, False

    def find(self, text: str) -> int | None:
        """The value's end; None if it is not there yet. text: as in the last call, or longer."""
        while match := _STRUCTURE.search(text, self._at):
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
                return end
        self._at = max(self._at, len(text))
        return None
