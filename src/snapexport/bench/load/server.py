"""Runs the workload on Triton's /generate_stream: a thread and a connection for each client.

Answers are server-sent events, each a JSON object whose `num_output_tokens` counts its new tokens.
A refused request becomes an exchange with an error, and its client goes on.
"""

import json
import socket
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import quote, urlsplit

from snapexport.bench.load.exchange import Exchange
from snapexport.bench.load.workload import Prompt, Workload
from snapexport.contract.errors import UserError

TIMEOUT_SECONDS = 600
_EVENT = b"data:"


class TritonModel:
    """One model of a running server, by its HTTP address."""

    def __init__(self, address: str, model: str, timeout: float = TIMEOUT_SECONDS) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None, "LoadOptions checked it"
        self._host, self._port = parts.hostname, parts.port or 80
        self._path = f"{parts.path.rstrip('/')}/v2/models/{quote(model, safe='')}"
        self._timeout = timeout
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
                "start one with `snapexport serve BUILD --triton`, and give Triton's own address",
            ) from None
        finally:
            connection.close()
        if status != 200:
            raise UserError(
                f"the server at {self.address} has no model '{self.model}' that is ready",
                "give its name: --server-model NAME",
            )

    def drive(self, workload: Workload, clock: Callable[[], float]) -> list[Exchange]:
        """All exchanges, by client. An interrupt closes all connections."""
        clients = [_Client(self._connection(), prompts) for prompts in workload.prompts]
        with ThreadPoolExecutor(len(clients)) as threads:
            try:
                asked = threads.map(lambda one: self._ask(one, workload.max_tokens, clock), clients)
                return [exchange for exchanges in asked for exchange in exchanges]
            except BaseException:
                for client in clients:
                    client.hang_up()
                raise

    def _ask(
        self, client: "_Client", max_tokens: int, clock: Callable[[], float]
    ) -> list[Exchange]:
        """Prompt after prompt."""
        exchanges = []
        while client.prompts:
            exchange = Exchange(clock())
            exchanges.append(exchange)
            try:
                prompt = client.prompts.popleft()
                self._exchange(client, prompt, max_tokens, exchange, clock)
            except (OSError, HTTPException, ValueError) as error:
                exchange.error = f"{type(error).__name__}: {error}"
                client.connection.close()  # the next request opens it again
        client.connection.close()
        return exchanges

    def _exchange(
        self,
        client: "_Client",
        prompt: Prompt,
        max_tokens: int,
        exchange: Exchange,
        clock: Callable[[], float],
    ) -> None:
        body = {
            "input_ids": prompt,
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
            "return_num_output_tokens": True,
        }
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        path = f"{self._path}/generate_stream"
        client.connection.request("POST", path, json.dumps(body), headers)
        client.socket = client.connection.sock
        response = client.connection.getresponse()
        if response.status != 200:
            raise HTTPException(f"status {response.status}: {response.read(500).decode()}")
        for answer in events(response):
            now = clock()
            if "error" in answer:
                exchange.error = str(answer["error"])
            exchange.arrived(now, int(answer.get("num_output_tokens", 0)))

    def _connection(self) -> HTTPConnection:
        return HTTPConnection(self._host, self._port, timeout=self._timeout)


class _Client:
    """A connection, and its remaining prompts."""

    def __init__(self, connection: HTTPConnection, prompts: list[Prompt]) -> None:
        self.connection = connection
        self.prompts = deque(prompts)
        self.socket: socket.socket | None = None

    def hang_up(self) -> None:
        """Send no further request, and end another thread's read."""
        self.prompts.clear()
        if self.socket:
            with suppress(OSError):  # closed already
                self.socket.shutdown(socket.SHUT_RDWR)


def events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream of server-sent events as they arrive."""
    for line in response:
        if line.startswith(_EVENT):
            yield json.loads(line.removeprefix(_EVENT))
