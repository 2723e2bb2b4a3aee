"""Keeps the oracle's answers on disk, by all that makes them, so that transformers answers once.

An answer depends on a checkpoint's files, the other arguments, the sources of the oracle and of
what it imports, and four libraries: these are the key. Without a folder each process asks
transformers anew, as with SNAPEXPORT_TRACE_CACHE=off.
"""

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import snapexport

LIBRARIES = ("torch", "transformers", "numpy", "safetensors")
ORACLE = ("drafts.py", "masked.py", "routing.py", "turns.py", "vote.py")
IMPORTED = (
    *("errors.py", "contract/columns.py", "contract/geometry.py", "contract/slots.py"),
    *("contract/steps.py", "contract/layer_geometry.py", "contract/head_groups.py"),
    "contract/vote.py",
    "plugins/reference.py",
)
"""Of snapexport: the geometry, and the vote's options."""

Inputs = ParamSpec("Inputs")
Answer = TypeVar("Answer")

_folders: list[Path] = []


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Answers of this process come from `folder` in this block, and new ones are put there."""
    _folders.append(folder)
    try:
        yield
    finally:
        _folders.pop()


def kept(
    answer: Callable[Concatenate[Path, Inputs], Answer],
) -> Callable[Concatenate[Path, Inputs], Answer]:
    """The same function of a checkpoint's directory and others, which looks for a file first."""

    @wraps(answer)
    def found(model_dir: Path, *args: Inputs.args, **options: Inputs.kwargs) -> Answer:
        if not _folders:
            return answer(model_dir, *args, **options)
        path = _folders[-1] / f"{key(answer.__qualname__, model_dir, args, options)}.pickle"
        if path.is_file():
            known: Answer = pickle.loads(path.read_bytes())
            return known
        new = answer(model_dir, *args, **options)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(pickle.dumps(new))
        partial.replace(path)
        return new

    return found


def key(name: str, model_dir: Path, *inputs: object) -> str:
    """inputs: their repr tells them apart."""
    files = {path.name: digest([path]) for path in sorted(model_dir.iterdir()) if path.is_file()}
    return hashlib.sha256(repr((name, files, inputs, sources())).encode()).hexdigest()


@cache
def sources() -> str:
    """Of the oracle's sources, of those that it imports, and of the libraries."""
    here, package = Path(__file__).parent, Path(snapexport.__file__).parent
    files = [*(here / name for name in ORACLE), *(package / name for name in IMPORTED)]
    return f"{digest(files)} {[version(library) for library in LIBRARIES]}"


def digest(files: list[Path]) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
