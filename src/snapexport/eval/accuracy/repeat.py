"""The same comparison without us: plain `polygraphy run` commands, and the data they load.

For one sequence: its last prefill chunk and its first decode step, of each graph, against what
transformers said of the same tokens.
"""

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from polygraphy.comparator import IterationResult, RunResults

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.eval.accuracy.graph_runner import GraphRunner
from snapexport.eval.accuracy.repeat_commands import LOADER, Case, commands_for
from snapexport.eval.accuracy.sequence import DECODE_LOGITS, PREFILL_LOGITS, Array

COMMANDS = "commands.sh"

_LOADER_HEADER = '''"""What the graphs take, for polygraphy run --data-loader-script FILE:NAME."""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def bf16(bits):
    """NumPy has no bf16, torch has."""
    import torch

    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def load(file):
    """Arrays by name. Only bf16 is kept as uint16: its bits."""
    with np.load(HERE / file) as arrays:
        return {k: bf16(a) if a.dtype == np.uint16 else a for k, a in arrays.items()}
'''

_LOADER_FUNCTION = '''

def {function}():
    """Inputs of {graph}.onnx."""
    yield load("{function}.npz")
'''


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
    cases = _once_each(case for runner in runners for case in _cases(runner, reference))
    for case in cases:
        inputs: dict[str, Any] = {name: _storable(a) for name, a in case.call.feed.items()}
        np.savez(directory / f"{case.name}.npz", **inputs)
        _save_reference(directory / f"{case.name}.reference.json", case)
    functions = [_LOADER_FUNCTION.format(function=c.name, graph=c.call.graph) for c in cases]
    (directory / LOADER).write_text("".join([_LOADER_HEADER, *functions]))
    commands = directory / COMMANDS
    lines = ["#!/bin/sh", 'cd "$(dirname "$0")"', *commands_for(build, cases)]
    commands.write_text("\n".join(lines) + "\n")
    commands.chmod(0o755)
    return commands


def _cases(runner: GraphRunner, reference: IterationResult) -> list[Case]:
    """The last prefill chunk and the first decode step of a runner's graphs."""
    decode_logits = np.asarray(reference[DECODE_LOGITS])
    same_weights = runner.build.manifest.quantization is None
    return [
        Case(runner.last_prefill, np.asarray(reference[PREFILL_LOGITS]), lossless=same_weights),
        Case(runner.first_decode, decode_logits[:1], runner.lossless and same_weights),
    ]


def _once_each(cases: Iterable[Case]) -> list[Case]:
    """Each graph as the first of the runners ran it."""
    first: dict[str, Case] = {}
    for case in cases:
        first.setdefault(case.name, case)
    return list(first.values())


def _save_reference(path: Path, case: Case) -> None:
    """transformers' logits in Polygraphy's own format, under the graph's output name."""
    # The sequence runs in every slot of the batch alike.
    rows = np.broadcast_to(case.reference, case.call.logits.shape).copy()
    results = RunResults()
    results.append(("transformers", [IterationResult(OrderedDict([(names.LOGITS, rows)]), 0.0)]))
    results.save(str(path))


def _storable(array: Array) -> Array:
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
