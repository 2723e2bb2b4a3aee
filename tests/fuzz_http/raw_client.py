"""A small HTTP client that sends any bytes, and reads what comes back."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

HEAD_BYTES = 1 << 20
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass
class Answer:
    """An answer as it came. status 0: the server closed without one."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Connection:
    """One connection to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, raw: bytes, ends: bool = True) -> None:
        """Send bytes; a server that has closed meanwhile is no error, its answer is read next."""
        with suppress(ConnectionError):
            self.writer.write(raw)
            await self.writer.drain()
            if not ends:
                self.writer.write_eof()

    async def answer(self) -> Answer:
        """Read one answer, whole."""
        answer = await self.head()
        body = bytearray()
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            async for part in self.parts(answer):
                body += part
        answer.body = bytes(body)
        return answer

    async def head(self) -> Answer:
        try:
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except (ConnectionError, asyncio.IncompleteReadError):
            return Answer()
        status = int(lines[0].split(" ")[1])
        if status < 200:  # 100 Continue
            return await self.head()
        fields = (line.partition(":") for line in lines[1:] if line)
        return Answer(status, {name.lower(): value.strip() for name, _, value in fields})

    async def parts(self, answer: Answer) -> AsyncIterator[bytes]:
        """The body's parts: chunks, or all of it."""
        if answer.headers.get("transfer-encoding") == "chunked":
            while size := int((await self.reader.readuntil(b"\r\n")).strip(), 16):
                yield (await self.reader.readexactly(size + 2))[:-2]
        elif "content-length" in answer.headers:
            yield await self.reader.readexactly(int(answer.headers["content-length"]))
        elif answer.headers.get("connection") == "close":
            yield await self.reader.read()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=HEAD_BYTES)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def post(path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """A request's bytes, with the headers that a client sends."""
    usual = {"Host": "localhost", "Content-Type": "application/json", "Connection": "close"}
    lines = {**usual, "Content-Length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def post_json(path: str, body: Mapping[str, Any]) -> bytes:
    return post(path, json.dumps(body).encode())


async def exchange(port: int, raw: bytes, seconds: float = 300, ends: bool = True) -> Answer:
    """Send a request on a connection of its own, and read its answer.

    ends False: stop writing after it, since the server may wait for more.
    """
    async with asyncio.timeout(seconds), connected(port) as connection:
        sending = asyncio.create_task(connection.send(raw, ends))
        try:
            return await connection.answer()
        finally:
            sending.cancel()
