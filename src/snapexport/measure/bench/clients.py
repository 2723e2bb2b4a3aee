"""Many clients with the same requests: on a server, and on the runtime in this process.

Each client sends a request, reads its answer to the end, and sends the next.
"""

import json
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams

TIMEOUT_SECONDS = 600
_EVENT = b"data:"

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
    them at the end, where its chunks do not say how many they hold.
    """

    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    error: str | None = None
    counted: int | None = None

    def arrived(self, at: float, tokens: int) -> None:
        """Record an answer. One without tokens, such as the last, does not count."""
        if tokens:
            self.arrivals.append((at, tokens))

    @property
    def tokens(self) -> int:
        return self.counted or sum(tokens for _, tokens in self.arrivals)

    @property
    def ttft(self) -> float:
        return self.arrivals[0][0] - self.sent

    def gaps(self) -> Iterator[float]:
        """ITL in seconds; tokens that came together share their gap."""
        for (before, _), (at, tokens) in zip(self.arrivals, self.arrivals[1:], strict=False):
            yield from [(at - before) / tokens] * tokens


def drive_in_process(llm: LLM, workload: Workload, clock: Clock) -> list[Exchange]:
    """All the exchanges, in the order in which they were sent: without server or threads."""
    params = SamplingParams(max_tokens=workload.max_tokens, ignore_eos=True)
    waiting = [iter(prompts) for prompts in workload.prompts]
    running: dict[int, tuple[int, Exchange]] = {}
    exchanges: list[Exchange] = []

    def ask(client: int) -> None:
        prompt = next(waiting[client], None)
        if prompt is not None:
            exchanges.append(Exchange(clock()))
            running[llm.submit(prompt, params)] = client, exchanges[-1]

    for client in range(len(waiting)):
        ask(client)
    while running:
        deltas = llm.step()
        now = clock()
        for delta in deltas:
            client, exchange = running[delta.request_id]
            exchange.arrived(now, len(delta.token_ids))
            if delta.finish_reason:
                if delta.finish_reason == "error":
                    exchange.error = "the model's logits were no numbers"
                del running[delta.request_id]
                ask(client)
    return exchanges


@dataclass
class Client(ABC):
    """A connection, and its remaining prompts. Subclasses know a server's requests and answers."""

    connection: HTTPConnection
    path: str
    prompts: deque[Prompt]
    max_tokens: int
    clock: Clock
    sock: socket.socket | None = None

    @abstractmethod
    def body(self, prompt: Prompt) -> dict[str, Any]:
        """A request's JSON."""

    @abstractmethod
    def take(self, exchange: Exchange, event: bytes, now: float) -> None:
        """Record a server-sent event. Raises ValueError if it is not as expected."""

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
        self.connection.request("POST", self.path, json.dumps(self.body(prompt)), headers)
        self.sock = self.connection.sock
        response = self.connection.getresponse()
        if response.status != 200:
            raise HTTPException(f"status {response.status}: {response.read(500).decode()}")
        for line in response:
            if line.startswith(_EVENT):
                self.take(exchange, line.removeprefix(_EVENT).strip(), self.clock())

    def hang_up(self) -> None:
        """Send no further request, and end another thread's read."""
        self.prompts.clear()
        if self.sock:
            with suppress(OSError):  # closed already
                self.sock.shutdown(socket.SHUT_RDWR)


def drive(clients: Sequence[Client]) -> list[Exchange]:
    """All exchanges, by client, each in a thread. An interrupt closes all connections."""
    with ThreadPoolExecutor(len(clients)) as threads:
        try:
            done = threads.map(lambda client: list(client.exchanges()), clients)
            return [exchange for exchanges in done for exchange in exchanges]
        except BaseException:
            for client in clients:
                client.hang_up()
            raise


class TritonModel:
    """One model of a running server, by its HTTP address."""

    def __init__(self, address: str, model: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None, "LoadOptions checked it"
        self._host, self._port = parts.hostname, parts.port or 80
        self._path = f"{parts.path.rstrip('/')}/v2/models/{quote(model, safe='')}"
        self.address, self.model = address, model

    def require_ready(self) -> None:
        """Raise a UserError unless the server is there and has the model."""
        connection = self._connection()
        try:
            connection.request("GET", f"{self._path}/ready")
            status = connection.getresponse().status
        except (OSError, HTTPException) as error:
            raise UserError(
                f"no server answers at {self.address}: {error}",
                "`snapexport triton BUILD --out DIR`, then `tritonserver --model-repository=DIR`",
            ) from None
        finally:
            connection.close()
        if status != 200:
            raise UserError(
                f"the server at {self.address} has no model '{self.model}' that is ready",
                "give its name, --server-model NAME; the server has to be Triton, not `serve`",
            )

    def drive(self, workload: Workload, clock: Clock) -> list[Exchange]:
        """All exchanges, by client."""
        path = f"{self._path}/generate_stream"
        return drive(
            [
                _TritonClient(self._connection(), path, deque(prompt), workload.max_tokens, clock)
                for prompt in workload.prompts
            ]
        )

    def _connection(self) -> HTTPConnection:
        return HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)


class _TritonClient(Client):
    """Events are JSON objects with the number of their tokens."""

    def body(self, prompt: Prompt) -> dict[str, Any]:
        return {
            "input_ids": prompt,
            "max_tokens": self.max_tokens,
            "stream": True,
            "ignore_eos": True,
            "return_num_output_tokens": True,
        }

    def take(self, exchange: Exchange, event: bytes, now: float) -> None:
        answer = json.loads(event)
        if "error" in answer:
            exchange.error = str(answer["error"])
        exchange.arrived(now, int(answer.get("num_output_tokens", 0)))
