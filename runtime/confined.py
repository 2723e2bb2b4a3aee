"""Runs a worker in a process of its own, whose time and memory are bounded.

For work that may loop or fill the memory by somebody else's choice, and can't be ended in a thread.
`Pool` is the caller's end. `serve` is the worker's: its standard input is a socket, and messages
are JSON.
"""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import LifoQueue
from typing import Any

from snapexport.errors import UserError

SECONDS = 20.0
"""Time of one answer by the clock, for a machine that is busy with other things."""
OPENING_SECONDS = 120.0
"""The same of the reply to the opening."""
CPU_SECONDS = 2.0
"""Processor time of one answer. The kernel ends a process that takes more."""
OPENING_CPU_SECONDS = 20.0
"""The same of the reply to the opening, for a worker that reads a large vocabulary."""
MEMORY_BYTES = 1 << 30
PROCESSES = 2
"""While a client's work loops in one, the next client has another."""

Answer = Callable[[bytes], Mapping[str, Any]]


def serve(answer: Answer, opening_seconds: float = CPU_SECONDS) -> None:
    """Be a worker: answer each message on standard input, until the other end closes."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server drains first
    connection, seconds = Connection(0), opening_seconds
    while True:
        try:
            given = connection.recv_bytes()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, seconds)
        reply = answer(given)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(json.dumps(reply).encode())
        seconds = CPU_SECONDS


@dataclass
class Confined:
    """A worker, which is started when it is needed, and again when it has ended.

    module: calls `serve` as a program. opening: its first message. failed, hint: of the error
    when it had to be ended.
    """

    module: str
    opening: Mapping[str, Any]
    failed: str
    hint: str
    _child: "subprocess.Popen[bytes] | None" = None

    def start(self) -> Mapping[str, Any]:
        """Start the worker. Returns its reply to the opening. Raises UserError."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", self.module],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        try:
            return self._exchange(self.opening, OPENING_SECONDS)
        except UserError:
            self.end()
            raise

    def ask(self, given: object) -> Mapping[str, Any]:
        """The worker's reply. Raises UserError, also if the worker had to be ended."""
        if self._child is None or self._child.poll() is not None:
            self.end()
            self.start()
        return self._exchange(given, SECONDS)

    def end(self) -> int:
        """Kill the worker; its exit status."""
        if self._child is None:
            return 0
        self._child.kill()
        self._connection.close()
        status, self._child = self._child.wait(), None
        return status

    def _exchange(self, given: object, seconds: float) -> Mapping[str, Any]:
        reply: Mapping[str, Any] | None = None
        with suppress(EOFError, OSError):
            self._connection.send_bytes(json.dumps(given).encode())
            if self._connection.poll(seconds):
                reply = json.loads(self._connection.recv_bytes())
        if reply is None:
            raise self._no_answer(seconds)
        if "message" in reply:
            raise UserError(reply["message"], reply["hint"])
        return reply

    def _no_answer(self, seconds: float) -> UserError:
        """The error of a worker that gave no answer. It is killed if it still runs."""
        assert self._child is not None
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(0.1)
        is_over = self._child.returncode is not None
        status = self.end()
        what = f"its process ended with status {status}"
        if status == -signal.SIGPROF:
            what = f"it took more than {CPU_SECONDS:g} s of processor time"
        elif status == -signal.SIGABRT:
            what = "it took too much memory"
        elif not is_over:
            what = f"it took more than {seconds:g} s"
        return UserError(f"{self.failed}: {what}", self.hint)


class Pool:
    """Workers of one kind, for any thread. They end with it."""

    def __init__(self, make: Callable[[], Confined]) -> None:
        """None is started yet."""
        self._free: LifoQueue[Confined] = LifoQueue()
        for _ in range(PROCESSES):
            self._free.put(make())
        self.close = weakref.finalize(self, _end, list(self._free.queue))
        """Ends the workers, which must not be asked any more."""

    def ask(self, given: object) -> Mapping[str, Any]:
        """The reply of a worker that is free. Raises UserError."""
        with self.worker() as worker:
            return worker.ask(given)

    @contextmanager
    def worker(self) -> Iterator[Confined]:
        """A worker that is free."""
        worker = self._free.get()  # the latest: others need not have been started
        try:
            yield worker
        finally:
            self._free.put(worker)


def _end(workers: list[Confined]) -> None:
    for worker in workers:
        worker.end()


def _environment() -> dict[str, str]:
    """Ours without its secrets, and with this very snapexport."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SNAPEXPORT_")}
    home = str(Path(__file__).parents[2])
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, [home, kept.get("PYTHONPATH")]))}
