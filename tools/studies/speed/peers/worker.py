"""The program of a peer's process: `worker.py PLUGIN_FILE {"option": ...}`. Imports no snapexport.

It reads a command as a line of JSON from standard input, runs it, answers with a line, and sleeps
until the next: {"do": "first_token", "tokens": [...]}, {"do": "fill", "context": N}, {"do": "step"}
or {"do": "answer", "tokens": [...], "count": N}. The answer is {"seconds": ..., "gave": ...}, or
{"failed": ...} with the reason. The first answer is that of loading, and has "versions".
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TextIO


def main() -> None:
    """Load, then answer commands until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    peer: Any = None

    def load() -> dict[str, Any]:
        nonlocal peer
        plugin = _plugin(sys.argv[1])
        peer = plugin.make(**json.loads(sys.argv[2]))
        found = {}
        for package in plugin.PACKAGES:
            with suppress(PackageNotFoundError):
                found[package] = version(package)
        return {"versions": found}

    def obey(do: str, **given: Any) -> dict[str, Any]:
        return {"gave": getattr(peer, do)(**given)}

    _answer(answers, load)
    for line in sys.stdin:
        _answer(answers, partial(obey, **json.loads(line)))


def _plugin(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("plugin", path)
    assert spec and spec.loader, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _answer(answers: TextIO, action: Callable[[], dict[str, Any]]) -> None:
    """Do it, and answer with the seconds and what it gave, or why it failed."""
    started = time.perf_counter()
    try:
        given = action()
        answer: dict[str, Any] = {"seconds": time.perf_counter() - started, **given}
    except Exception as error:  # whatever a library raises is the result's to tell
        answer = {"failed": f"{type(error).__name__}: {error}"[:500]}
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
