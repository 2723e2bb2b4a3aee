"""`python -m tools.performance.workers MODULE {"option": ...}`.

MODULE has `make(**options)`, which gives a Peer, and PACKAGES, whose versions are told.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TextIO

from .peer import Peer


def main() -> None:
    """Load, say so, then answer line by line until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    name, options = sys.argv[1], json.loads(sys.argv[2])
    made: list[Peer] = []

    def load() -> dict[str, Any]:
        module = importlib.import_module(f"{__package__}.{name}")
        made.append(module.make(**options))
        return {"versions": dict(_versions(module.PACKAGES))}

    _answer(answers, load)
    for line in sys.stdin:
        _answer(answers, _action(made[0], json.loads(line)))


def _versions(packages: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Of those that are installed."""
    for package in packages:
        with suppress(PackageNotFoundError):
            yield package, version(package)


def _action(peer: Peer, asked: dict[str, Any]) -> Callable[[], None]:
    return lambda: getattr(peer, asked.pop("do"))(**asked)


def _answer(answers: TextIO, action: Callable[[], dict[str, Any] | None]) -> None:
    """Do it, and tell the seconds and what it gave, or why it failed."""
    started = time.perf_counter()
    try:
        given = action() or {}
        told: dict[str, Any] = {"seconds": time.perf_counter() - started, **given}
    except Exception as error:  # whatever a library raises is the result's to tell
        told = {"failed": f"{type(error).__name__}: {error}"[:500]}
    print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
