"""The addresses of a running server, for people and programs."""

import json
import shlex
import socket
from dataclasses import dataclass

_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Addresses:
    """The model's name, and the server's URLs."""

    model: str
    openai: str
    health: str
    metrics: str

    @classmethod
    def at(cls, url: str, model: str) -> "Addresses":
        """The model's addresses at a server's URL."""
        return cls(model, f"{url}/v1", f"{url}/health", f"{url}/metrics")

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
