"""Helps to start and reach server processes: addresses, free ports, an end with their parent's."""

import json
import random
import shlex
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snapexport.errors import UserError

if TYPE_CHECKING:
    from urllib.request import Request

_FIRST_PORT, _TRIES = 10_000, 100


def leash() -> list[str]:
    """A command prefix that kills the server when this process ends, even by SIGKILL.

    More exactly, when the thread that started the server ends. Uses setpriv of util-linux; without
    it a server may outlive this process.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def answers(request: "str | Request", seconds: float = 1) -> bool:
    """Whether a URL, or a request, is answered with status 200 in time."""
    import urllib.request  # slow to import, for the commands that start nothing

    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
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


_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Addresses:
    """The model's name, and the server's URLs."""

    model: str
    openai: str
    health: str
    metrics: str
    page: str | None = None

    @classmethod
    def at(cls, url: str, model: str, *, page: bool = False) -> "Addresses":
        """The model's addresses at a server's URL. page: whether there is one."""
        return cls(
            model, f"{url}/v1", f"{url}/health", f"{url}/metrics", f"{url}/" if page else None
        )

    @property
    def curl(self) -> str:
        """A command line that sends a request."""
        body = {"model": self.model, "prompt": "Once upon a time", "max_tokens": 32}
        url = shlex.quote(f"{self.openai}/completions")
        data = shlex.quote(json.dumps(body))
        return f"curl {url} -H 'Content-Type: application/json' -d {data}"


def url_of(listener: socket.socket) -> str:
    """The server's URL, as a client on this machine reaches it."""
    host, port = listener.getsockname()[:2]
    local = _LOCAL.get(host, host)
    return f"http://[{local}]:{port}" if ":" in local else f"http://{local}:{port}"
