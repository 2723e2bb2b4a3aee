"""The same comparison without us: plain `polygraphy run` commands, and the data they load.

For one sequence: its last prefill chunk and its first decode step, of each graph, against what
transformers said of the same tokens.
"""

import shlex
from collections import OrderedDict
from pathlib import Path

import numpy as np
from polygraphy.comparator import IterationResult, RunResults

from snapexport.accuracy.difference import TOLERANCE
from snapexport.accuracy.graph_runner import Call, GraphRunner
from snapexport.accuracy.sequence import DECODE_LOGITS, INPUT_IDS, PREFILL_LOGITS, PROMPT_LENGTH, Feed
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import DType, GraphName

COMMANDS = "commands.sh"
LOADER = "load_data.py"

_LOADER_HEADER = '''"""Inputs of the graphs for `polygraphy run --data-loader-script load_data.py:FUNCTION`."""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
'''

_LOADER_FUNCTION = '''

def {function}():
    """Inputs of {graph}.onnx."""
    yield dict(np.load(HERE / "{function}.npz"))
'''


def write_repeat(
    directory: Path, build: Build, runners: list[GraphRunner], feed: Feed, reference: IterationResult
) -> Path:
    """Write loader, inputs, reference outputs and commands; the path of the commands."""
    directory.mkdir(parents=True, exist_ok=True)
    loader, commands = _LOADER_HEADER, ["#!/bin/sh", 'cd "$(dirname "$0")"']
    for runner in runners:
        for call in _representative_calls(runner, feed):
            function = call.graph.replace("/", "_")
            output = DECODE_LOGITS if function.endswith("decode") else PREFILL_LOGITS
            np.savez(directory / f"{function}.npz", **call.feed)
            expected = directory / f"{function}.reference.json"
            _save_reference(expected, np.asarray(reference[output])[:1], call)
            loader += _LOADER_FUNCTION.format(function=function, graph=call.graph)
            if output == DECODE_LOGITS and not runner.lossless:
                commands.append("# A difference here is what the compression costs.")
            commands.append(_command(build.graph(call.graph), function, build.manifest.dtype))
    (directory / LOADER).write_text(loader)
    (directory / COMMANDS).write_text("\n".join(commands) + "\n")
    (directory / COMMANDS).chmod(0o755)
    return directory / COMMANDS


def _representative_calls(runner: GraphRunner, feed: Feed) -> list[Call]:
    """The last prefill chunk and the first decode step."""
    length = int(feed[PROMPT_LENGTH][0])
    with runner:
        calls = list(runner.calls(feed[INPUT_IDS][0][: length + 1], length))
    kinds: dict[GraphName, Call] = {call.graph: call for call in calls if call.logits is not None}
    return list(kinds.values())


def _save_reference(path: Path, logits: np.ndarray, call: Call) -> None:
    """transformers' logits in Polygraphy's own format, under the graph's output name."""
    assert call.logits is not None
    # The sequence runs in every slot of the batch alike.
    rows = np.broadcast_to(logits, call.logits.shape).copy()
    results = RunResults()
    results.append(("transformers", [IterationResult(OrderedDict([(names.LOGITS, rows)]), 0.0)]))
    results.save(str(path))


def _command(graph: Path, function: str, dtype: DType) -> str:
    return " ".join(
        [
            f"polygraphy run {shlex.quote(str(graph.absolute()))} --onnxrt",
            f"--data-loader-script {LOADER}:{function}",
            f"--load-outputs {function}.reference.json",
            f"--atol {TOLERANCE[dtype]} --rtol 0 --check-error-stat max",
        ]
    )
