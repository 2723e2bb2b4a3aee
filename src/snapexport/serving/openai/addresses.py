"""Where everything that `snapexport serve` started answers."""

import json
import shlex
import socket
from dataclasses import dataclass

_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Addresses:
    """The model's name, the API's base URL, and Triton's own."""

    model: str
    openai: str
    http: str
    grpc: str
    metrics: str

    @property
    def curl(self) -> str:
        """A line for a shell that asks the API."""
        body = {"model": self.model, "prompt": "Once upon a time", "max_tokens": 32}
        asked = shlex.quote(json.dumps(body))
        url = shlex.quote(f"{self.openai}/completions")
        return f"curl {url} -H 'Content-Type: application/json' -d {asked}"


def url_of(listener: socket.socket) -> str:
    """The API's base URL, as a client on this machine reaches it."""
    host, port = listener.getsockname()[:2]
    local = _LOCAL.get(host, host)
    return f"http://[{local}]:{port}/v1" if ":" in local else f"http://{local}:{port}/v1"
