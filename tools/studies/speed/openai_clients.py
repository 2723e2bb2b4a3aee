"""Clients of OpenAI's completions API, which every deployment of a build has.

Each client sends a request, reads its answer to the end, and sends the next. A chunk does not say
how many tokens it holds: the usage at the end has their number.
"""

import json
import socket
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 600
_EVENT, _DONE = b"data:", b"[DONE]"

Prompt = list[int]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Workload:
    """prompts: each client's prompts, in order. max_tokens: length of each answer; end-of-sequence
    tokens are ignored.
    """

    prompts: list[list[Prompt]]
    max_tokens: int


@dataclass(slots=True)
class Exchange:
    """One request: when it was sent, and when its tokens came, in seconds of one clock.

    arrivals: (time, number of tokens). error: why it failed. counted: tokens as the server counted
    them at the end: its chunks do not say how many they hold.
    """

    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    error: str | None = None
    counted: int | None = None

    @property
    def tokens(self) -> int:
        return self.counted or sum(tokens for _, tokens in self.arrivals)

    @property
    def ttft(self) -> float:
        return self.arrivals[0][0] - self.sent


class OpenAIModel:
    """One model of a running server. address: with its version, such as http://127.0.0.1:8000/v1"""

    def __init__(self, address: str, model: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or 80
        self._path, self.model = f"{parts.path.rstrip('/')}/completions", model

    def drive(self, workload: Workload, clock: Clock) -> list[Exchange]:
        """All exchanges, by client, each in a thread. An interrupt closes all connections.

        An answer of fewer tokens than asked for is an error.
        """
        clients = [self._client(prompts, workload, clock) for prompts in workload.prompts]
        with ThreadPoolExecutor(len(clients)) as threads:
            try:
                of_each = list(threads.map(lambda client: list(client.exchanges()), clients))
            except BaseException:
                for client in clients:
                    client.hang_up()
                raise
        done = [exchange for exchanges in of_each for exchange in exchanges]
        for one in done:
            if one.error is None and one.counted != workload.max_tokens:
                one.error = f"an answer ended with {one.counted} of {workload.max_tokens} tokens"
        return done

    def _client(self, prompts: list[Prompt], workload: Workload, clock: Clock) -> "_Client":
        connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        request = {
            "model": self.model,
            "max_tokens": workload.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return _Client(connection, self._path, request, deque(prompts), clock)


@dataclass
class _Client:
    """A connection, and its remaining prompts. request: fields of each, without the prompt."""

    connection: HTTPConnection
    path: str
    request: dict[str, Any]
    prompts: deque[Prompt]
    clock: Clock
    sock: socket.socket | None = None

    def exchanges(self) -> Iterator[Exchange]:
        """Prompt after prompt. A request that fails becomes an exchange with an error."""
        while self.prompts:
            exchange = Exchange(self.clock())
            try:
                self._ask(self.prompts.popleft(), exchange)
            except (OSError, HTTPException, ValueError) as error:
                exchange.error = f"{type(error).__name__}: {error}"
                self.connection.close()  # the next request opens it again
            yield exchange
        self.connection.close()

    def _ask(self, prompt: Prompt, exchange: Exchange) -> None:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        body = json.dumps(self.request | {"prompt": prompt})
        self.connection.request("POST", self.path, body, headers)
        self.sock = self.connection.sock
        response = self.connection.getresponse()
        if response.status != 200:
            raise HTTPException(f"status {response.status}: {response.read(500).decode()}")
        for line in response:
            if line.startswith(_EVENT):
                self._take(exchange, line.removeprefix(_EVENT).strip(), self.clock())

    def _take(self, exchange: Exchange, event: bytes, now: float) -> None:
        if event == _DONE:
            return
        chunk = json.loads(event)
        if "error" in chunk:
            exchange.error = str(chunk["error"])
        if chunk.get("choices"):
            exchange.arrivals.append((now, 1))
        if usage := chunk.get("usage"):
            exchange.counted = int(usage["completion_tokens"])

    def hang_up(self) -> None:
        """Send no further request, and end another thread's read."""
        self.prompts.clear()
        if self.sock:
            with suppress(OSError):  # closed already
                self.sock.shutdown(socket.SHUT_RDWR)
