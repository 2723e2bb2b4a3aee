"""What was measured, kept in a file row by row, so that a later command goes on from there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Results:
    """Rows by stage. A row is told by its keys, which say what it is of."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    def rows(self, stage: str) -> list[Row]:
        """Those of a stage."""
        found: list[Row] = self._found.get(stage, [])
        return found

    def has(self, stage: str, **keys: Any) -> bool:
        """Whether that was measured."""
        return any(keys.items() <= row.items() for row in self.rows(stage))

    def add(self, stage: str, row: Row) -> None:
        """Keep one, at once."""
        self._found.setdefault(stage, []).append(row)
        self._write()

    def set(self, name: str, value: Any) -> None:
        """Keep something that is there once."""
        self._found[name] = value
        self._write()

    def get(self, name: str) -> Any:
        """What `set` kept, or None."""
        return self._found.get(name)

    def report(self) -> Row:
        """All of it."""
        return self._found

    def _write(self) -> None:
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self._found, indent=1) + "\n")
        unfinished.replace(self._path)


def missing(results: Results, stage: str, cache: str, contexts: tuple[int, ...]) -> Iterator[int]:
    """The contexts of a cache that are still to be measured."""
    return (n for n in contexts if not results.has(stage, cache=cache, context=n))
