"""Renders a chat template in processes of its own, whose time and memory are bounded.

A template is a program of whoever made the checkpoint. jinja2's sandbox keeps it from files and
from Python, but not from looping, and no thread can be ended amid `9 ** 999999999`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import LifoQueue
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.chat.chat_template import ChatTemplate, Message
from snapexport.runtime.chat.template_worker import CPU_SECONDS

SECONDS = 20.0
"""Time of one rendering by the clock, for a machine that is busy with other things."""
PROCESSES = 2
"""While a client's template loops in one, the next client has another."""
_HINT = "use a checkpoint whose chat template ends soon, or prompts without a template"


class TemplateProcesses:
    """A `ChatTemplate` whose renderings are bounded. Any thread may render."""

    def __init__(self, template: ChatTemplate) -> None:
        """Start a process, which reads the template. Raises UserError for a broken one."""
        self.source = template.source
        self._free: LifoQueue[_Process] = LifoQueue()
        for _ in range(PROCESSES):
            self._free.put(_Process(template))
        with self._process() as process:
            facts = process.start()
        self.options, self.reads_tools = frozenset(facts["options"]), bool(facts["reads_tools"])
        self._finalizer = weakref.finalize(self, _end, list(self._free.queue))

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        options: Mapping[str, Any] | None = None,
        is_complete: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt's text, as `ChatTemplate.render` makes it. Raises UserError."""
        with self._process() as process:
            return process.render([messages, add_generation_prompt, options, is_complete, tools])

    def close(self) -> None:
        """End the processes, which must not render any more."""
        self._finalizer()

    @contextmanager
    def _process(self) -> "Iterator[_Process]":
        process = self._free.get()  # the latest: others need not have been started
        try:
            yield process
        finally:
            self._free.put(process)


class _Process:
    """One worker, which is started when it is needed, and again when it has ended."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = {"source": template.source, "special": dict(template.special)}
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> Mapping[str, Any]:
        """Start the worker. Returns what it finds in the template. Raises UserError."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "snapexport.runtime.chat.template_worker"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        try:
            return self._exchange(self._template)
        except UserError:
            self.end()
            raise

    def render(self, given: Sequence[Any]) -> str:
        """The text. Raises UserError, also if the worker had to be ended."""
        if self._child is None or self._child.poll() is not None:
            self.end()
            self.start()
        return str(self._exchange(given)["text"])

    def end(self) -> int:
        """Kill the worker; its exit status."""
        if self._child is None:
            return 0
        self._child.kill()
        self._connection.close()
        status, self._child = self._child.wait(), None
        return status

    def _exchange(self, given: object) -> Mapping[str, Any]:
        reply: Mapping[str, Any] | None = None
        with suppress(EOFError, OSError):
            self._connection.send_bytes(json.dumps(given).encode())
            if self._connection.poll(SECONDS):
                reply = json.loads(self._connection.recv_bytes())
        if reply is None:
            raise self._ended()
        if "message" in reply:
            raise UserError(reply["message"], reply["hint"])
        return reply

    def _ended(self) -> UserError:
        """The error of a worker that gave no answer. It is killed if it still runs."""
        assert self._child is not None
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(0.1)
        is_over = self._child.returncode is not None
        status = self.end()
        what = f"its process ended with status {status}"
        if status == -signal.SIGPROF:
            what = f"it took more than {CPU_SECONDS:g} s of processor time"
        elif not is_over:
            what = f"it took more than {SECONDS:g} s"
        return UserError(f"the chat template cannot be applied: {what}", _HINT)


def _end(processes: "list[_Process]") -> None:
    for process in processes:
        process.end()


def _environment() -> dict[str, str]:
    """Ours without its secrets, and with this very snapexport."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SNAPEXPORT_")}
    home = str(Path(__file__).parents[3])
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, [home, kept.get("PYTHONPATH")]))}
