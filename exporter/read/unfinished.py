"""Names downloads that have not ended, by the files that programs keep until then.

Browsers, wget's friends, aria2, the Hub's client and git-lfs each have a suffix of their own.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from snapexport.errors import UserError

_ENDS = (
    *("part", "partial", "incomplete", "tmp", "temp", "crdownload", "opdownload", "download"),
    *("aria2", "filepart", "unfinished", "!ut", "bc!", "fdmdownload", "ifdownload"),
)
_OF_WEIGHTS = (".safetensors", ".gguf", "Unconfirmed ")
_CONTROL = ".aria2"
"""Is beside a file that has its name and its size from the beginning."""
_OF_HUB = (".cache/huggingface/download", "../../blobs")
"""Where the Hub's client keeps a file until it is whole, by a hash in the place of its name."""


def is_unfinished(name: str) -> bool:
    """Whether a file's name is that of a download that has not ended."""
    return name.rpartition(".")[2].lower() in _ENDS and "." in name


def find_unfinished(folder: Path, names: Iterable[str], wanted: str) -> Path | None:
    """The unfinished download of a file that is not there, or else one of other weights."""
    found = [folder / name for name in names if is_unfinished(name)]
    found = [path for path in found if any(one in path.name for one in (wanted, *_OF_WEIGHTS))]
    found.sort(key=lambda path: wanted not in path.name)
    for place in _OF_HUB:
        with suppress(OSError):
            found += sorted((folder / place).glob("*.incomplete"))
    return found[0] if found else None


def error_of(path: Path, wanted: str, said: str) -> UserError:
    """The error of a file whose download has not ended. said: the fault that it makes."""
    return UserError(
        f"{said}: {path.name} is a download that has not ended",
        f"let the download of {wanted} end, or begin it again; a part of a file cannot be read",
    )


def require_finished(folder: Path, names: Iterable[str], read: Iterable[str]) -> None:
    """Raise UserError for a file in whose place there is only a part, or a part of its size.

    names: of the folder. read: those of it that would be read, if they were there.
    """
    there = set(names)
    for name in there:
        whole = name.removeprefix(".").rpartition(".")[0]
        if not is_unfinished(name) or whole not in read:
            continue
        if whole not in there or name.endswith(_CONTROL):
            raise error_of(folder / name, whole, f"{folder / whole} is not whole")
