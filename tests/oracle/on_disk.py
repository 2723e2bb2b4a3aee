"""Keeps the oracle's answers in the store, by all that makes them, so transformers answers once.

An answer depends on a checkpoint's files, the other arguments, the sources of the module that
answers and of what it imports, and the installed packages: these are the key. Without a store each
process asks transformers anew, as with SNAPEXPORT_TRACE_CACHE=off.
"""

import hashlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from tests import sources
from tests.store import Store

Inputs = ParamSpec("Inputs")
Answer = TypeVar("Answer")

_stores: list[Store] = []


@contextmanager
def kept_in(store: Store) -> Iterator[None]:
    """Answers of this process come from `store` in this block, and new ones are put there."""
    _stores.append(store)
    try:
        yield
    finally:
        _stores.pop()


def kept(
    answer: Callable[Concatenate[Path, Inputs], Answer],
) -> Callable[Concatenate[Path, Inputs], Answer]:
    """The same function of a checkpoint's directory and others, which looks into the store."""

    @wraps(answer)
    def found(model_dir: Path, *args: Inputs.args, **options: Inputs.kwargs) -> Answer:
        if not _stores:
            return answer(model_dir, *args, **options)
        module = answer.__module__
        name = f"answer-{key(answer.__qualname__, module, model_dir, args, options)}"
        known: Answer = pickle.loads(
            _stores[-1].content(name, lambda: pickle.dumps(answer(model_dir, *args, **options)))
        )
        return known

    return found


def kept_folder(
    make: Callable[Concatenate[str, Path, Inputs], Path],
) -> Callable[Concatenate[str, Path, Inputs], Path]:
    """The same function of a name, a directory that it fills, and others."""

    @wraps(make)
    def found(name: str, directory: Path, *args: Inputs.args, **options: Inputs.kwargs) -> Path:
        is_empty = not directory.exists() or not any(directory.iterdir())
        if not _stores or not is_empty:
            return make(name, directory, *args, **options)
        described = name, args, sorted(options.items()), sources.digest(make.__module__)
        entry = f"folder-{hashlib.sha256(repr(described).encode()).hexdigest()}"
        _stores[-1].directory(entry, lambda: make(name, directory, *args, **options), directory)
        return directory

    return found


def key(name: str, module: str, model_dir: Path, *inputs: object) -> str:
    """inputs: their repr tells them apart."""
    described = name, files_of(model_dir), inputs, sources.digest(module)
    return hashlib.sha256(repr(described).encode()).hexdigest()


def files_of(model: Path) -> dict[str, str]:
    """The hash of a file, or of each in a folder and below it."""
    files = [model] if model.is_file() else sorted(p for p in model.rglob("*") if p.is_file())
    return {
        str(path.relative_to(model)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
