"""Lists what a folder of kept chunks holds, build by build, from the files' headers."""

from dataclasses import dataclass
from pathlib import Path

from snapexport.errors import UserError
from snapexport.files.safetensors import read_metadata
from snapexport.runtime.prompt_store.folder import Entry, entries_of

UNREADABLE = ""
"""In the place of a build, of files that cannot be read."""


@dataclass(slots=True)
class Kept:
    """The chunks of one build. build: digest of what computes them, in hex.

    longest: tokens of the longest beginning of a prompt. used: when a chunk was used last, in
    seconds since 1970.
    """

    build: str
    chunks: int = 0
    nbytes: int = 0
    longest: int = 0
    used: float = 0.0

    def add(self, entry: Entry, end: int) -> None:
        """Add a file. end: tokens up to its chunk's end."""
        self.chunks += 1
        self.nbytes += entry.nbytes
        self.longest = max(self.longest, end)
        self.used = max(self.used, entry.used / 1e9)


def contents(folder: Path) -> list[Kept]:
    """The builds whose chunks a folder holds; the last used one first. Raises OSError."""
    found: dict[str, Kept] = {}
    for entry in entries_of(folder):
        build, end = _read(entry.path)
        found.setdefault(build, Kept(build)).add(entry, end)
    return sorted(found.values(), key=lambda kept: -kept.used)


def _read(file: Path) -> tuple[str, int]:
    """The build of a chunk, and the tokens up to its end."""
    try:
        metadata = read_metadata(file)
        return metadata["build"], int(metadata["end"])
    except (UserError, OSError, KeyError, ValueError):
        return UNREADABLE, 0
