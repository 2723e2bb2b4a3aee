"""Asks the real TensorRT for RTX about graphs, in processes of its own."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CAPABILITIES = ("8.6", "8.9", "12.0")


@dataclass(frozen=True)
class Answer:
    """What the library said.

    aborted: the process died. told: (what, value) of its log. scratch: bytes. nbytes: of the
    engine. inputs, outputs: [name, dtype, shape]. kernels: [name, inputs, outputs] of the engine,
    these by [name, shape].
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
    kernels: tuple[list[Any], ...] = ()
    aborted: bool = False

    @property
    def accepted(self) -> bool:
        """Whether the graph was parsed, and built if that was asked."""
        return self.parsed and self.built is not False and not self.aborted


def ask(
    graph: Path, capabilities: tuple[str, ...] = CAPABILITIES, plugins: Path | None = None
) -> Answer:
    """Parse `graph`, and build an engine for each of `capabilities`; none: only parse it."""
    answers, lost = _answers([graph], capabilities, plugins)
    return answers[0] if answers else lost


def ask_kernels(graph: Path) -> Answer:
    """The same, for one capability, with the engine's kernels."""
    answers, lost = _answers([graph], ("8.9",), kernels=True)
    return answers[0] if answers else lost


def ask_all(graphs: Sequence[Path], capabilities: tuple[str, ...] = CAPABILITIES) -> list[Answer]:
    """The same for many graphs, in as few processes as there are graphs that end one, and one.

    A graph that ends a process is asked about once more, as the first of the next process: what
    was built before it can't be the reason then.
    """
    found: list[Answer] = []
    while len(found) < len(graphs):
        rest = graphs[len(found) :]
        answers, lost = _answers(rest, capabilities)
        found += answers or [lost]
    return found


def _answers(
    graphs: Sequence[Path],
    capabilities: tuple[str, ...],
    plugins: Path | None = None,
    kernels: bool = False,
) -> tuple[list[Answer], Answer]:
    """Answers up to the graph that ended the process, and what is left of that one's."""
    command = [sys.executable, "-m", "tests.rtx.child", *map(str, graphs)]
    command += ["--capabilities", *capabilities]
    command += ["--plugins", str(plugins)] if plugins else []
    command += ["--kernels"] if kernels else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=300 + 10 * len(graphs))
    answers: list[Answer] = []
    told: list[tuple[str, str]] = []
    for line in (json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")):
        if "told" in line:
            told.append(tuple(line["told"]))
        else:
            answers.append(Answer(**line, told=tuple(told)))
            told = []
    return answers, Answer(told=tuple(told), aborted=True, errors=(done.stderr[-500:],))
