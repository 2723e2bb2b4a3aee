"""A fake deployment: prints addresses as `snapexport serve` and `dynamo up` do, and answers.

Run as a program with their arguments, by `interpreter`. Tokens come in chunks of two, as a server's
whose client is slow; the usage counts them. Its workers' metrics count rows of 100 bytes.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock
from typing import Any

ROW, PER_TOKEN = 100, 10
REFUSED, SHORT = 1, 2
"""First tokens of prompts that get status 503, and an answer of one token less."""

VERSIONS = {"ai-dynamo-runtime": "1", "nixl": "1", "onnxruntime": "1"}


class FakeOpenAI(ThreadingHTTPServer):
    """hold: if set, the server waits for it after each event. answered: one was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = Lock()
        self.bodies: list[dict[str, Any]] = []
        self.hold: Event | None = None
        self.answered = Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def metrics(self) -> str:
        tokens = sum(len(body["prompt"]) for body in self.bodies)
        found = {
            "slots_used": 0,
            "rows_moved_total": len(self.bodies),
            "row_bytes_total": ROW * len(self.bodies),
            "row_full_cache_bytes_total": PER_TOKEN * tokens,
            "row_seconds_total": 0.5 * len(self.bodies),
        }
        lines = [f'snapexport_{name}{{worker_id="1"}} {one}' for name, one in found.items()]
        return "# HELP snapexport_row_bytes_total Bytes\n" + "\n".join(lines) + "\n"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeOpenAI

    def do_GET(self) -> None:
        self._plain(200, self.server.metrics.encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/completions"
        with self.server.lock:
            self.server.bodies.append(body)
        if body["prompt"][0] == REFUSED:
            self._plain(503, b'{"error": "no room"}')
            return
        tokens = body["max_tokens"] - (body["prompt"][0] == SHORT)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(0, tokens, 2):
            self._event({"choices": [{"text": "ab"}], "usage": None})
        self._event({"choices": [], "usage": {"completion_tokens": tokens}})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, value: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.server.answered.set()
        if self.server.hold:
            self.server.hold.wait(20)

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


def interpreter(folder: Path, *, fails: bool = False) -> Path:
    """A program that stands for an interpreter with Dynamo. fails: its deployments don't start.

    It notes the arguments of each deployment in `folder`/calls.
    """
    program, calls = folder / "python", folder / "calls"
    start = "echo broken >&2; exit 1" if fails else f"exec {sys.executable} {__file__} "
    lines = [
        "#!/bin/sh",
        f"if [ \"$1\" = -c ]; then echo '{json.dumps(VERSIONS)}'; exit; fi",
        f'echo $$ "$@" >> {calls}',
        start if fails else start + '"$@"',
    ]
    program.write_text("\n".join(lines) + "\n")
    program.chmod(0o755)
    return program


def main(arguments: list[str]) -> None:
    server = FakeOpenAI()
    addresses = {"OpenAI": f"{server.url}/v1", "metrics": f"{server.url}/metrics"}
    workers = [one for one in arguments if one.startswith("--decode=")]
    if workers:
        addresses["decode-0"] = f"{server.url}/metrics"
    for name, url in addresses.items():
        print(f"  {name:<11}{url}")
    print("\ncurl ...", flush=True)
    server.serve_forever(0.05)


if __name__ == "__main__":
    main(sys.argv[1:])
