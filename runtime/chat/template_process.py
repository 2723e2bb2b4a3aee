"""Renders a chat template in processes of their own, whose time and memory are bounded.

A template is a program of whoever made the checkpoint. jinja2's sandbox keeps it from files and
from Python, but not from looping. Has the interface of `ChatTemplate`.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import LifoQueue
from typing import Any

import snapexport.runtime
from snapexport.errors import UserError
from snapexport.runtime.chat.chat_template import ChatTemplate, Message
from snapexport.runtime.chat.template_worker import CPU_SECONDS

SECONDS = 20.0
"""Time of one rendering by the clock, for a machine that is busy with other things."""
PROCESSES = 2
"""One that loops leaves another one for the next client."""
_READ_BYTES = 1 << 16
_HINT = "use a checkpoint whose chat template ends soon, or prompts without a template"


class TemplateProcesses:
    """A chat template whose renderings are bounded. Any thread may render."""

    def __init__(self, template: ChatTemplate) -> None:
        """Start a process, which reads the template. Raises UserError for a broken one."""
        self.source = template.source
        self._free: LifoQueue[_Process] = LifoQueue()
        for _ in range(PROCESSES):
            self._free.put(_Process(template))
        process = self._free.get()
        try:
            self.options = process.start()
        finally:
            self._free.put(process)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text, as `ChatTemplate.render` makes it. Raises UserError."""
        given = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "options": options,
        }
        process = self._free.get()  # the latest: others need not have been started
        try:
            return str(process.ask(given)["text"])
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End the processes. Later renderings start new ones."""
        for _ in range(PROCESSES):
            process = self._free.get()
            process.end()
            self._free.put(process)


class _Process:
    """One worker, which is started when it is needed, and again when it has ended."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = {"source": template.source, "special": dict(template.special)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> frozenset[str]:
        """Start the worker. Returns the names of the template's options."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "snapexport.runtime.chat.template_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=_environment(),
            start_new_session=True,
        )
        try:
            return frozenset(self._exchange(self._template)["options"])
        except UserError:
            self.end()
            raise

    def ask(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The worker's answer. Raises UserError, also if the worker had to be ended."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        return self._exchange(given)

    def end(self) -> int:
        """Kill the worker; its exit status."""
        if self._process is None:
            return 0
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        status, self._process = self._process.wait(), None
        return status

    def _exchange(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        line = b""
        with suppress(OSError):
            _write(self._process.stdin.fileno(), json.dumps(given).encode() + b"\n")
            line = self._line(time.monotonic() + SECONDS)
        if not line.endswith(b"\n"):
            raise self._ended()
        reply: Mapping[str, Any] = json.loads(line)
        if "message" in reply:
            raise UserError(reply["message"], reply["hint"])
        return reply

    def _line(self, end: float) -> bytes:
        """The answer's line; cut off where the worker ended or took too long."""
        assert self._process is not None and self._process.stdout is not None
        file = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(file, select.POLLIN)
        line = bytearray()
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                break
            part = os.read(file, _READ_BYTES)
            if not part:
                break
            line += part
        return bytes(line)

    def _ended(self) -> UserError:
        """The error of a worker that gave no answer. It is killed if it still runs."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.1)
        ended = self._process.returncode is not None
        status = self.end()
        what = f"its process ended with status {status}"
        if status == -signal.SIGPROF:
            what = f"it took more than {CPU_SECONDS:g} s of processor time"
        elif not ended:
            what = f"it took more than {SECONDS:g} s"
        return UserError(f"the chat template cannot be applied: {what}", _HINT)


def _write(file: int, line: bytes) -> None:
    view = memoryview(line)
    while view:
        view = view[os.write(file, view) :]


def _environment() -> dict[str, str]:
    """Ours without its secrets, and with this very snapexport."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SNAPEXPORT_")}
    home = str(Path(snapexport.runtime.__file__).parents[2])
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, [home, kept.get("PYTHONPATH")]))}
