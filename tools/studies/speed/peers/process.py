"""Runs a peer in its own process, which sleeps between commands."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapexport.contract.manifest import Quantization
from snapexport.contract.targets import Target
from snapexport.errors import UserError
from snapexport.files.dtypes import DType
from tools.studies.speed.builds import Builds

_WORKER = Path(__file__).with_name("worker.py")
_PAUSE = 0.05
"""Seconds between commands to different workers, until a library's spinning threads sleep."""


class PeerError(UserError):
    """A library's error, or how its process ended."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "what was measured before is kept; see that there is memory")


@dataclass(frozen=True)
class Scene:
    """What a plug-in chooses its variants by.

    files: the directory for the checkpoint in a peer's own format. gguf: the file that the
    checkpoint was made from, or None.

    bits: of the wanted weights. builds: quantization and dtype of the weights, and a target ->
    builds. peers_python, kvpress_python, openvino_python: interpreters, or None. systems: names of
    the wanted variants; empty: all.
    """

    bits: tuple[int, ...]
    model: str
    files: str
    threads: int
    contexts: tuple[int, ...]
    longest_prompt: int
    kv_budget: int
    builds: Callable[[Quantization | None, DType, Target], Builds]
    gguf: str | None = None
    peers_python: Path | None = None
    kvpress_python: Path | None = None
    openvino_python: Path | None = None
    systems: tuple[str, ...] = ()

    def wants(self, system: str) -> bool:
        """Whether a variant of that name will be measured."""
        return not self.systems or system in self.systems


@dataclass(frozen=True)
class Variant:
    """One system of a plug-in. bits: of its weights.

    python: the interpreter that has the library, or None. plugin: its file. contexts: those to
    decode at. prompts: whether its prefill is timed.
    """

    name: str
    bits: int
    python: Path | None
    plugin: str
    options: dict[str, Any]
    contexts: tuple[int, ...]
    prompts: bool = True

    @property
    def labels(self) -> dict[str, Any]:
        return {"system": self.name, "bits": self.bits}


class Worker:
    """A loaded peer. Raises PeerError if loading fails."""

    _asked_last: "Worker | None" = None

    def __init__(self, variant: Variant) -> None:
        if variant.python is None:
            raise PeerError("no interpreter was given for it")
        # -P: a plug-in's name must not hide a library's.
        program = [str(variant.python), "-P", str(_WORKER), variant.plugin]
        # Without our setting of how threads wait, so that libraries use their own.
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        environment.pop("OMP_WAIT_POLICY", None)
        try:
            self._process = subprocess.Popen(
                [*program, json.dumps(variant.options)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is for us, and we end it
            )
        except OSError as error:
            raise PeerError(f"its interpreter does not start: {error.strerror}") from None
        self.versions: dict[str, str] = {}
        self._read()

    def ask(self, do: str, **given: Any) -> float:
        """Run a command. Returns its seconds. Raises PeerError."""
        return float(self._told(do, given)["seconds"])

    def answer(self, tokens: Sequence[int], count: int) -> list[int]:
        """The `count` likeliest tokens after a prompt, one by one. Raises PeerError."""
        gave = self._told("answer", {"tokens": list(tokens), "count": count})["gave"]
        return [int(token) for token in gave]

    def request(self, tokens: Sequence[int], count: int) -> dict[str, Any]:
        """The answer of worker.py to a request for `count` tokens. Raises PeerError."""
        took: dict[str, Any] = self._told("request", {"tokens": list(tokens), "count": count})
        gave: dict[str, Any] = took["gave"]
        return gave

    def _told(self, do: str, given: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        if Worker._asked_last is not self:
            time.sleep(_PAUSE)
        Worker._asked_last = self
        with suppress(BrokenPipeError):  # reading says why
            print(json.dumps({"do": do, **given}), file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        """End the process. Later commands fail."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"its process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise PeerError(answer["failed"])
        self.versions |= answer.get("versions", {})
        return answer
