"""Asks the real TensorRT for RTX about a graph, in a process of its own."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

CAPABILITIES = ("8.6", "8.9", "12.0")


@dataclass(frozen=True)
class Answer:
    """What the library said.

    aborted: the process died. told: (what, value) of its log. scratch: bytes. nbytes: of the
    engine. inputs, outputs: [name, dtype, shape].
    """

    parsed: bool = False
    built: bool | None = None
    scratch: int | None = None
    nbytes: int | None = None
    errors: tuple[str, ...] = ()
    layers: dict[str, int] = field(default_factory=dict)
    inputs: tuple[list[object], ...] = ()
    outputs: tuple[list[object], ...] = ()
    told: tuple[tuple[str, str], ...] = ()
    aborted: bool = False

    @property
    def accepted(self) -> bool:
        """Whether the graph was parsed, and built if that was asked."""
        return self.parsed and self.built is not False and not self.aborted


def ask(
    graph: Path, capabilities: tuple[str, ...] = CAPABILITIES, plugins: Path | None = None
) -> Answer:
    """Parse `graph`, and build an engine for each of `capabilities`; none: only parse it."""
    command = [sys.executable, "-m", "tests.rtx.child", str(graph), "--capabilities", *capabilities]
    command += ["--plugins", str(plugins)] if plugins else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    told = tuple(tuple(line["told"]) for line in lines if "told" in line)
    answers = [line for line in lines if "parsed" in line]
    if not answers:
        return Answer(told=told, aborted=True, errors=(done.stderr[-500:],))
    return Answer(**answers[-1], told=told)
