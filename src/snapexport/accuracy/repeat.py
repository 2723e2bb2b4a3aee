"""The same comparison without us: plain `polygraphy run` commands, and the data they load.

For one sequence: its last prefill chunk and its first decode step, of each graph, against what
transformers said of the same tokens.
"""

import shlex
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from polygraphy.comparator import IterationResult, RunResults

from snapexport.accuracy.difference import TOLERANCE
from snapexport.accuracy.graph_runner import Call, GraphRunner
from snapexport.accuracy.sequence import DECODE_LOGITS, PREFILL_LOGITS, Array
from snapexport.contract import names
from snapexport.contract.build_directory import Build

COMMANDS = "commands.sh"
LOADER = "load_data.py"

_LOADER_HEADER = '''"""What the graphs take, for polygraphy run --data-loader-script FILE:NAME."""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
'''

_LOADER_FUNCTION = '''

def {function}():
    """Inputs of {graph}.onnx."""
    yield dict(np.load(HERE / "{function}.npz"))
'''


@dataclass(frozen=True, slots=True)
class Case:
    """One run of one graph that is to be repeated, and transformers' logits for it."""

    call: Call
    reference: Array
    lossless: bool

    @property
    def name(self) -> str:
        """The loader's function, and the stem of the case's files."""
        return self.call.graph.replace("/", "_")


def write_repeat(
    directory: Path,
    build: Build,
    runners: list[GraphRunner],
    reference: IterationResult,
) -> Path:
    """Write loader, inputs, reference outputs and commands; the path of the commands.

    The runners have just run the sequence of which `reference` is transformers' result.
    """
    directory.mkdir(parents=True, exist_ok=True)
    cases = [case for runner in runners for case in _cases(runner, reference)]
    for case in cases:
        inputs: dict[str, Any] = case.call.feed
        np.savez(directory / f"{case.name}.npz", **inputs)
        _save_reference(directory / f"{case.name}.reference.json", case)
    functions = [_LOADER_FUNCTION.format(function=c.name, graph=c.call.graph) for c in cases]
    (directory / LOADER).write_text("".join([_LOADER_HEADER, *functions]))
    commands = directory / COMMANDS
    lines = ["#!/bin/sh", 'cd "$(dirname "$0")"', *(_command(build, case) for case in cases)]
    commands.write_text("\n".join(lines) + "\n")
    commands.chmod(0o755)
    return commands


def _cases(runner: GraphRunner, reference: IterationResult) -> list[Case]:
    """The last prefill chunk and the first decode step of a runner's graphs."""
    decode_logits = np.asarray(reference[DECODE_LOGITS])
    return [
        Case(runner.last_prefill, np.asarray(reference[PREFILL_LOGITS]), lossless=True),
        Case(runner.first_decode, decode_logits[:1], runner.lossless),
    ]


def _save_reference(path: Path, case: Case) -> None:
    """transformers' logits in Polygraphy's own format, under the graph's output name."""
    # The sequence runs in every slot of the batch alike.
    rows = np.broadcast_to(case.reference, case.call.logits.shape).copy()
    results = RunResults()
    results.append(("transformers", [IterationResult(OrderedDict([(names.LOGITS, rows)]), 0.0)]))
    results.save(str(path))


def _command(build: Build, case: Case) -> str:
    remark = "" if case.lossless else "# A difference here is what the compression costs.\n"
    graph = shlex.quote(str(build.graph(case.call.graph).absolute()))
    return remark + " ".join(
        [
            f"polygraphy run {graph} --onnxrt",
            f"--data-loader-script {LOADER}:{case.name}",
            f"--load-outputs {case.name}.reference.json",
            f"--atol {TOLERANCE[build.manifest.dtype]} --rtol 0 --check-error-stat max",
        ]
    )
