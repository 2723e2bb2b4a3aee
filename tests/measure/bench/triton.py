"""A fake server of Triton's /generate_stream. It counts tokens instead of computing them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

from tests.patience import PATIENCE


class FakeTriton(ThreadingHTTPServer):
    """Streams the requested number of tokens, two at a time, and a last event without any.

    refused: prompts that begin with this token get status 503; broken: an error in the stream.
    hold: if set, the server waits for it after each event; waits: whether it came in time.
    """

    daemon_threads = True
    refused, broken = 1, 2

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.lock = Lock()
        self.hold: Event | None = None
        self.waits: list[bool] = []
        self.answered = Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeTriton

    def do_GET(self) -> None:
        found = self.path == "/v2/models/tiny/ready"
        self._plain(200 if found else 400, b"")

    def do_POST(self) -> None:
        assert self.path == "/v2/models/tiny/generate_stream"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(body)
        if body["input_ids"][0] == self.server.refused:
            self._plain(503, b'{"error": "the queue is full"}')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for answer in self._answers(body):
            self._chunk(f"data: {json.dumps(answer)}\n\n".encode())
        self._chunk(b"")

    def _answers(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        left = body["max_tokens"]
        while left:
            count = min(2, left)
            left -= count
            yield {"text_output": "", "num_output_tokens": count}
            self.server.answered.set()
            if self.server.hold:
                self.server.waits.append(self.server.hold.wait(PATIENCE))
            if body["input_ids"][0] == self.server.broken:
                yield {"error": "the executor broke"}
                return
        yield {"text_output": "", "num_output_tokens": 0, "finish_reason": "length"}

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _plain(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def running() -> Iterator[FakeTriton]:
    server = FakeTriton()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        if server.hold:
            server.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
