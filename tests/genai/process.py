"""onnxruntime-genai in a process of its own, whose commands are methods."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("driver.py")
SECONDS = 120


class GenaiError(Exception):
    """What genai refused, in its words."""


class Genai:
    """A folder that is open in genai. Generators are numbered."""

    def __init__(self, python: str, folder: Path) -> None:
        command = [python, str(DRIVER)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.ask("open", str(folder))

    def ask(self, *command: Any) -> Any:
        """The answer to a command of `Driver`. Raises GenaiError."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            raise GenaiError(answer["error"])
        return answer["ok"]

    def answer(self, tokens: Sequence[int], count: int, name: int = 0, **search: Any) -> list[int]:
        """The likeliest tokens after a prompt."""
        self.start(name, **search)
        self.ask("append", name, [*tokens])
        found: list[int] = self.ask("generate", name, count)
        return found

    def start(self, name: int = 0, **search: Any) -> None:
        """A new generator, which takes the likeliest token."""
        self.ask("start", name, {"do_sample": False, **search})

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(SECONDS)
