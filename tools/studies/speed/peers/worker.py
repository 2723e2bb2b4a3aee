"""The program of a peer's process: `worker.py PLUGIN_FILE {"option": ...}`. Imports no snapexport.

It reads a command as a line of JSON from standard input, runs it, answers with a line, and sleeps
until the next: {"do": "first_token", "tokens": [...]}, {"do": "fill", "context": N}, {"do": "step"}
or {"do": "answer", "tokens": [...], "count": N}, and with "request" the same for times and memory
in place of tokens. The answer is {"seconds": ..., "gave": ...}, or {"failed": ...} with the reason.
The first answer is that of loading, and has "versions".
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
from itertools import islice
from pathlib import Path
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
        command = _COMMANDS.get(do) or getattr(type(peer), do)
        return {"gave": command(peer, **given)}

    _answer(answers, load)
    for line in sys.stdin:
        _answer(answers, partial(obey, **json.loads(line)))
        if idle := getattr(peer, "idle", None):  # what its library does after the answer
            idle()


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


def _tokens(peer: Any, tokens: list[int], count: int) -> list[int]:
    return list(islice(peer.stream(tokens), count))


def _request(peer: Any, tokens: list[int], count: int) -> dict[str, Any]:
    """Seconds to the first token and to the last, and the most bytes of memory meanwhile.

    first_cpu, last_cpu: those of the processor, of all threads. pss_bytes: at the end, with a file
    that is mapped twice counted once.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the most memory is that of now
    started, started_cpu = time.perf_counter(), time.process_time()
    stream = peer.stream(tokens)
    gave = [next(stream)]
    first, first_cpu = time.perf_counter() - started, time.process_time() - started_cpu
    gave += islice(stream, count - 1)
    last, last_cpu = time.perf_counter() - started, time.process_time() - started_cpu
    if len(gave) < count:
        raise ValueError(f"it ended after {len(gave)} tokens")
    most, share = _kilobytes("status", "VmHWM:"), _kilobytes("smaps_rollup", "Pss:")
    times = {"first": first, "last": last, "first_cpu": first_cpu, "last_cpu": last_cpu}
    return times | {"peak_bytes": most * 1024, "pss_bytes": share * 1024, "tokens": gave}


def _kilobytes(file: str, name: str) -> int:
    lines = Path("/proc/self", file).read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith(name))
    return int(found)


_COMMANDS = {"answer": _tokens, "request": _request}
"""What is made of a peer's `stream`."""


if __name__ == "__main__":
    main()
