"""Compiles each library once for all workers and runs, by a key of all that makes it.

The key is the command, its compiler's version, and every file that the command names or that lies
in a folder of its headers. `pytest --cache-clear` empties the folder.
"""

import fcntl
import hashlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from snapexport.plugins import compiling


class Libraries:
    """Libraries in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, name: str, command: Callable[[Path], list[str]]) -> Path:
        """The library that `command` makes, given where. Another worker's is waited for."""
        out = self.folder / key(command(Path("out"))) / f"{name}.so"
        out.parent.mkdir(parents=True, exist_ok=True)
        with (out.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not out.is_file():
                partial = out.with_suffix(".partial")
                compiling.build(command(partial))
                partial.replace(out)
        return out


def key(command: list[str]) -> str:
    version = subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(repr(command).encode() + version)
    for file in sorted(set(files_of(command))):
        digest.update(f"\0{file}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def files_of(command: list[str]) -> Iterator[Path]:
    for before, word in zip(["", *command], command, strict=False):
        if word.startswith("-I") or before == "-isystem":
            folder = Path(word.removeprefix("-I"))
            yield from (path for path in folder.rglob("*") if path.is_file())
        elif not word.startswith("-") and Path(word).is_file():
            yield Path(word)
