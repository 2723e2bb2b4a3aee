"""Finds the name that a mistyped one may have meant."""

from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

_MOST_NAMES = 1 << 10
_CLOSE = 0.65


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name with the most similar letters and digits, if any is similar."""
    by_letters = {_letters(one): one for one in known}
    found = get_close_matches(_letters(name), by_letters, n=1, cutoff=_CLOSE)
    return by_letters[found[0]] if found else None


def did_you_mean(name: object) -> str:
    """The beginning of a hint; nothing for None."""
    return f"did you mean {name}? " if name is not None else ""


def near(path: Path, marker: str, suffix: str | None = None) -> Path | None:
    """A path like one that is not there: of a folder with a file `marker`, or with the suffix."""
    home = path.parent
    if not home.is_dir():  # the mistake may be in a folder's name
        siblings = {one.name: one for one in _entries(home.parent) if one.is_dir()}
        home = siblings.get(closest(home.name, siblings) or "", home)
    known = {one.name: one for one in folders_with(home, marker, suffix)}
    found = closest(path.name, known)
    return known[found] if found else None


def near_file(path: Path) -> Path | None:
    """A file like one that is not there, in its folder."""
    known = {one.name: one for one in _entries(path.parent) if one.is_file()}
    found = closest(path.name, known)
    return known[found] if found else None


def folders_with(folder: Path, marker: str, suffix: str | None = None) -> list[Path]:
    """The entries of a folder that have a file `marker`, or the suffix."""
    return [one for one in _entries(folder) if one.suffix == suffix or (one / marker).is_file()]


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(islice(folder.iterdir(), _MOST_NAMES))
    return []


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()
