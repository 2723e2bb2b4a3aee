"""Answers messages on standard input as a process whose memory and processor time are bounded.

`confined.py` is the other end.
"""

import json
import resource
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

CPU_SECONDS = 2.0
"""Processor time of one answer. The kernel ends a process that takes more."""
OPENING_SECONDS = 20.0
"""The same for the first one."""
MEMORY_BYTES = 1 << 30

Answer = Callable[[bytes], Mapping[str, Any]]


def serve(answer: Answer, opening_seconds: float = CPU_SECONDS) -> None:
    """Answer each message, until the other end closes."""
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
