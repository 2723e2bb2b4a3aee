"""`snapexport.builder.build` for tests to which a build is only a means: each is made once.

A build depends on the checkpoint's files, the options, the sources of the builder and of what it
imports, and the installed packages: these are the key under which the store keeps it. Workers,
runs and clones share it. Tests of building itself, and those that change what builds, call the
builder.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snapexport import builder
from snapexport.contract.build_directory import Build
from tests import sources
from tests.oracle.on_disk import files_of
from tests.store import Store

_stores: list[Store] = []


@contextmanager
def kept_in(store: Store) -> Iterator[None]:
    """Builds of this block come from `store`, and new ones are put there."""
    _stores.append(store)
    try:
        yield
    finally:
        _stores.pop()


def build(model: Path, out: Path, **options: Any) -> Build:
    """Build `out`, a new directory, from a checkpoint in a directory, now or before."""
    if not _stores or options.get("link_weights"):  # which writes down where the checkpoint is
        return builder.build(model, out, **options)
    assert not out.exists(), f"{out} exists"
    name = f"build-{key(model, options)}"
    _stores[-1].directory(name, lambda: builder.build(model, out, **options), out)
    return Build.open(out)


def key(model: Path, options: dict[str, Any]) -> str:
    """Options that are files count by their content."""
    given = {
        name: value.read_text() if isinstance(value, Path) else value
        for name, value in sorted(options.items())
    }
    described = files_of(model), given, sources.digest(builder.__name__)
    return hashlib.sha256(repr(described).encode()).hexdigest()
