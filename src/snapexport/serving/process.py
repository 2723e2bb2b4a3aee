"""Helps to start server processes: free ports, an end with their parent's, and signs of life."""

import random
import shutil
import socket
import urllib.request
from contextlib import suppress

from snapexport.errors import UserError

_FIRST_PORT, _TRIES = 10_000, 100


def leash() -> list[str]:
    """A command prefix that kills the server when this process ends, even by SIGKILL.

    More exactly, when the thread that started the server ends. Uses setpriv of util-linux; without
    it a server may outlive this process.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def answers(url: str) -> bool:
    """Whether a URL answers with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_port(host: str, below: int | None = None) -> int:
    """A port that nobody listens at now. below: for those who can't read all numbers of ports."""
    ports = [0] if below is None else random.sample(range(_FIRST_PORT, below), _TRIES)
    for port in ports:
        with socket.socket() as listener, suppress(OSError):
            listener.bind((host, port))
            found: int = listener.getsockname()[1]
            return found
    raise UserError(f"{host} has no free port", "see what listens there: `ss -tln`")
