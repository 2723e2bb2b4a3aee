"""Compiles each library once for all workers, runs and clones, by a key of all that makes it.

The key is the command, its compiler's version, every file that the command names or that is in a
folder of our headers, and the sizes and times of others' headers.
"""

import hashlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from snapexport.plugins import binding
from tests.store import Store


class Libraries:
    """Libraries in `folder`, from `store` or compiled for it."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self._store = folder, store

    def make(self, name: str, command: Callable[[Path], list[str]]) -> Path:
        """The library that `command` makes, given where. Another worker's is waited for."""

        def compiled() -> bytes:
            binding.compile_library(command(partial))
            return partial.read_bytes()

        known = key(command(Path("out")))
        out = self._folder / known / f"{name}.so"
        if not out.is_file():
            out.parent.mkdir(parents=True)
            partial = out.with_suffix(".partial")
            out.write_bytes(self._store.content(f"library-{known}", compiled))
        return out


def key(command: list[str]) -> str:
    version = subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(repr(command).encode() + version)
    for file in sorted(set(files_of(command))):
        digest.update(f"\0{file}\0".encode())
        if file.is_relative_to(binding.HOME):
            digest.update(file.read_bytes())
        else:
            known = file.stat()
            digest.update(f"{known.st_size} {known.st_mtime_ns}".encode())
    return digest.hexdigest()


def files_of(command: list[str]) -> Iterator[Path]:
    for before, word in zip(["", *command], command, strict=False):
        if word.startswith("-I") or before == "-isystem":
            folder = Path(word.removeprefix("-I"))
            yield from (path for path in folder.rglob("*") if path.is_file())
        elif not word.startswith("-") and Path(word).is_file():
            yield Path(word)
