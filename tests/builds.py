"""`snapexport.builder.build` for tests: each build is made once.

A build depends on the checkpoint's files, the options, the sources of the builder and of what it
imports, and the installed packages: these are the key under which the store keeps it. Workers,
runs and clones share it. Tests of what surrounds a build (places, links, interruptions) call the
builder.
"""

import hashlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from snapexport import builder
from snapexport.contract.build_directory import Build
from tests import sources
from tests.oracle.on_disk import files_of
from tests.store import Store

_stores: list[Store] = []
_replaced: dict[int, list[str]] = {}
"""The modules that have something replaced now, by the id of who did; "" is no module of ours."""


@contextmanager
def kept_in(store: Store) -> Iterator[None]:
    """Builds of this block come from `store`, and new ones are put there."""
    replace, undo = pytest.MonkeyPatch.setattr, pytest.MonkeyPatch.undo

    def noted(patch: pytest.MonkeyPatch, *what: Any, **options: Any) -> None:
        _replaced.setdefault(id(patch), []).append(module_of(what[0]))
        replace(patch, *what, **options)

    def undone(patch: pytest.MonkeyPatch) -> None:
        undo(patch)
        _replaced.pop(id(patch), None)

    with pytest.MonkeyPatch.context() as own:
        own.setattr(pytest.MonkeyPatch, "setattr", noted)
        own.setattr(pytest.MonkeyPatch, "undo", undone)
        _replaced.clear()
        _stores.append(store)
        try:
            yield
        finally:
            _stores.pop()


def module_of(target: Any) -> str:
    """The module of ours that `target` names or is a part of, or ""."""
    name = getattr(target, "__module__", None) or getattr(target, "__name__", str(target))
    while name and not sources.is_module(name):  # a text may name a function of the module
        name = name.rpartition(".")[0]
    return str(name)


def is_replaced(module: str) -> bool:
    """Whether a part of what a module consists of may be replaced now."""
    return not {"", *sources.closure(module)}.isdisjoint(itertools.chain(*_replaced.values()))


def build(model: Path, out: Path, *, compares: bool = True, **options: Any) -> Build:
    """Build `out` from a checkpoint, now or before.

    Now if a test replaces something that a build may use, or asks for reports or links, or if `out`
    is there. compares: whether the build may compare itself with transformers. A test that does so
    with the whole model has no need of it, and it's half of the time.
    """
    own = {"link_weights", "progress"} & {name for name, value in options.items() if value}
    with _compared(compares):
        if not _stores or own or is_replaced(builder.__name__) or out.exists():
            return builder.build(model, out, **options)
        name = f"build-{key(model, options | {'compares': compares})}"
        _stores[-1].directory(name, lambda: builder.build(model, out, **options), out)
    return Build.open(out)


@contextmanager
def _compared(compares: bool) -> Iterator[None]:
    """A build of this block compares itself if it is due, or doesn't."""
    if compares:
        yield
        return
    with mock.patch("snapexport.builder.selfcheck.verify_if_due", return_value=None):
        yield


def key(model: Path, options: dict[str, Any]) -> str:
    """Options that are files count by their content."""
    given = {
        name: files_of(value) if isinstance(value, Path) else value
        for name, value in sorted(options.items())
    }
    described = files_of(model), given, sources.digest(builder.__name__)
    return hashlib.sha256(repr(described).encode()).hexdigest()
