"""Clients of OpenAI's completions API, which every deployment of a build has.

A chunk does not say how many tokens it holds: the usage at the end has their number.
"""

import json
from collections import deque
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from snapexport.measure.bench.clients import (
    TIMEOUT_SECONDS,
    Client,
    Clock,
    Exchange,
    Prompt,
    Workload,
    drive,
)

_DONE = b"[DONE]"


class OpenAIModel:
    """One model of a running server. address: with its version, such as http://127.0.0.1:8000/v1"""

    def __init__(self, address: str, model: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or 80
        self._path, self.model = f"{parts.path.rstrip('/')}/completions", model

    def drive(self, workload: Workload, clock: Clock) -> list[Exchange]:
        """All exchanges, by client. An answer of fewer tokens than asked for is an error."""
        done = drive([self._client(prompts, workload, clock) for prompts in workload.prompts])
        for one in done:
            if one.error is None and one.counted != workload.max_tokens:
                one.error = f"an answer ended with {one.counted} of {workload.max_tokens} tokens"
        return done

    def _client(self, prompts: list[Prompt], workload: Workload, clock: Clock) -> "OpenAIClient":
        connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        own = deque(prompts)
        return OpenAIClient(connection, self._path, own, workload.max_tokens, clock, self.model)


class OpenAIClient(Client):
    """Streams completions of token ids, greedily."""

    def __init__(
        self,
        connection: HTTPConnection,
        path: str,
        prompts: deque[Prompt],
        max_tokens: int,
        clock: Clock,
        model: str,
    ) -> None:
        super().__init__(connection, path, prompts, max_tokens, clock)
        self.model = model

    def body(self, prompt: Prompt) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def take(self, exchange: Exchange, event: bytes, now: float) -> None:
        if event == _DONE:
            return
        chunk = json.loads(event)
        if "error" in chunk:
            exchange.error = str(chunk["error"])
        if chunk.get("choices"):
            exchange.arrived(now, 1)
        if usage := chunk.get("usage"):
            exchange.counted = int(usage["completion_tokens"])
