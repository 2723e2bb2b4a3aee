"""A peer's process: asked, answering and asleep in between."""

import json
import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapexport.contract.errors import UserError

ROOT = Path(__file__).parents[2]

_PAUSE = 0.05
"""Seconds before another worker is asked: threads wait for work in a spin, and then go to sleep."""


class PeerError(UserError):
    """What a library said, or how its process ended."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "what was measured before is kept; see that there is memory")


@dataclass(frozen=True)
class Peer:
    """Who takes part. python: the interpreter that has the library; None where there is none.

    bits: of its weights. contexts: where it decodes. prompts: whether it is given whole ones.
    """

    name: str
    bits: int
    python: Path | None
    module: str
    options: dict[str, Any]
    contexts: tuple[int, ...]
    prompts: bool = True


class Worker:
    """A loaded peer. Raises PeerError where it can't be."""

    _asked_last: "Worker | None" = None

    def __init__(self, peer: Peer) -> None:
        if peer.python is None:
            raise PeerError("no interpreter was given for it")
        module = ["-m", "tools.performance.workers", peer.module, json.dumps(peer.options)]
        try:
            self._process = _started([str(peer.python), *module])
        except OSError as error:
            raise PeerError(f"its interpreter does not start: {error.strerror}") from None
        self.versions: dict[str, str] = {}
        self._read()

    def ask(self, do: str, **given: Any) -> float:
        """Seconds that it took."""
        assert self._process.stdin
        if Worker._asked_last is not self:
            time.sleep(_PAUSE)
        Worker._asked_last = self
        with suppress(BrokenPipeError):  # reading says why
            print(json.dumps({"do": do, **given}), file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        """End it: whatever it is asked from then on fails."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> float:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"its process ended with status {self._process.wait()}")
        told = json.loads(line)
        if "failed" in told:
            raise PeerError(told["failed"])
        self.versions |= told.get("versions", {})
        return float(told["seconds"])


def _started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for us, and we end it
    )


def _environment() -> dict[str, str]:
    """Threads wait as their library has them wait, whatever we were told."""
    ours = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    return ours | {"HF_HUB_OFFLINE": "1"}
