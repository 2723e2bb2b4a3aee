"""Writes plain `polygraphy run` commands that repeat a comparison, and the data that they load.

For one sequence: the last prefill chunk and the first decode step of each graph, against
transformers' logits for the same tokens. On ONNX Runtime, and on TensorRT for a build with that
target.
"""

import shlex
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from polygraphy.comparator import IterationResult, RunResults

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.engines import EngineEntry
from snapexport.contract.targets import EngineLibrary, capabilities
from snapexport.measure.accuracy.difference import tolerance
from snapexport.measure.accuracy.graph_runner import Call, GraphRunner
from snapexport.measure.accuracy.sequence import DECODE_LOGITS, PREFILL_LOGITS, Array

LOADER, COMMANDS = "load_data.py", "commands.sh"

_COSTS = "# A difference here is the cost of compression, or of 4-bit weights.\n"
_ON_A_GPU = (
    "# With TensorRT and a GPU. Each command builds an engine from the graph, which takes long.\n"
    "# PLUGINS=/path/to/libsnapexport_registering.so fuses the compress step.\n"
    "# If polygraphy doesn't find CUDA's runtime of the wheels:\n"
    "# export LD_LIBRARY_PATH=$(dirname $(python -c 'import cuda.pathfinder as p; "
    'print(p.load_nvidia_dynamic_lib("cudart").abs_path)\'))'
)
_ON_AN_RTX_GPU = (
    "# With TensorRT for RTX and a GPU. Each command builds an engine from the graph.\n"
    "# Without a GPU: polygraphy inspect capability GRAPH, or polygraphy convert GRAPH\n"
    "# --convert-to trt --compute-capabilities 8.9 -o FILE.\n"
    "export POLYGRAPHY_USE_TENSORRT_RTX=1"
)
_PLUGINS = '${PLUGINS:+--plugins "$PLUGINS"}'
_NEEDED_PLUGINS = '--plugins "${PLUGINS:?has to name libsnapexport_registering.so}"'


@dataclass(frozen=True, slots=True)
class Case:
    """One run of one graph to repeat, and transformers' logits for it."""

    call: Call
    reference: Array
    lossless: bool

    @property
    def name(self) -> str:
        """The name of the loader's function, and the stem of the case's files."""
        return self.call.graph.replace("-", "_")


def commands_for(build: Build, cases: list[Case]) -> list[str]:
    """Lines of a shell script. None for ONNX Runtime in bf16, which it can't compute on the CPU."""
    lines = []
    if build.manifest.dtype != "bf16":
        lines += [_of_graph(build, case, "--onnxrt") for case in cases]
    library = capabilities(build.manifest.target).library
    if library is None:
        return lines
    if library.capabilities:
        lines.append(_ON_AN_RTX_GPU)
        lines += [_of_graph(build, case, "--trt") for case in cases]
    else:
        lines.append(_ON_A_GPU)
        on_tensorrt = f"--trt --strongly-typed {_PLUGINS}"
        lines += [_of_graph(build, case, on_tensorrt) for case in cases]
    return [*lines, *_of_engines(build, library, cases)]


def _of_engines(build: Build, library: EngineLibrary, cases: list[Case]) -> Iterable[str]:
    """Commands for the engines of `snapexport engine`."""
    here = _machine(library)
    for name, entry in build.manifest.engines.items():
        gpu = entry.gpu or f"compute capability {', '.join(entry.compute_capabilities)}"
        about = f"# The engine {name}, on {gpu} with {library.title} {entry.version}"
        if entry.stripped:
            yield f"{about} is stripped: polygraphy cannot load its weights."
        elif here and not _may_run(entry, *here):
            yield f"{about} is for another machine: repeat the comparison there."
        else:
            yield f"{about}" + (": needs PLUGINS, as above." if entry.needs_plugins else ".")
            yield from _of_engine(build, entry, cases)


def _of_engine(build: Build, entry: EngineEntry, cases: list[Case]) -> Iterable[str]:
    plugins = [_NEEDED_PLUGINS] if entry.needs_plugins else []
    flags = " ".join(["--model-type engine --trt", *plugins])
    for case in cases:
        if plan := entry.graphs.get(case.call.graph):
            yield _command(build, case, build.directory / plan.file, flags)


def _machine(library: EngineLibrary) -> tuple[str, str] | None:
    """The library's version and the GPU's name, where both exist."""
    try:
        trt, cuda = map(import_module, (library.module, "cuda.bindings.runtime"))
    except (ImportError, OSError):
        return None
    problem, properties = cuda.cudaGetDeviceProperties(0)
    return None if problem else (trt.__version__, properties.name.decode().rstrip("\0"))


def _may_run(entry: EngineEntry, tensorrt: str, gpu: str) -> bool:
    """Whether the engine runs on this machine, judged by its names."""
    for_version = entry.version_compatible or entry.version == tensorrt
    is_for_others = entry.hardware_compatibility != "none" or entry.gpu is None
    return for_version and (is_for_others or entry.gpu == gpu)


def _of_graph(build: Build, case: Case, flags: str) -> str:
    return _command(build, case, build.graph(case.call.graph), flags)


def _command(build: Build, case: Case, model: Path, flags: str) -> str:
    return ("" if case.lossless else _COSTS) + " ".join(
        [
            f"polygraphy run {shlex.quote(str(model.absolute()))} {flags}",
            f"--data-loader-script {LOADER}:{case.name}",
            f"--load-outputs {case.name}.reference.json",
            f"--atol {tolerance(build.manifest)} --rtol 0 --check-error-stat max",
        ]
    )


_LOADER_HEADER = '''"""Inputs of the graphs, for polygraphy run --data-loader-script FILE:NAME."""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def bf16(bits):
    """NumPy has no bf16, torch has."""
    import torch

    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def load(file):
    """Arrays by name. uint16 arrays hold the bits of bf16."""
    with np.load(HERE / file) as arrays:
        return {k: bf16(a) if a.dtype == np.uint16 else a for k, a in arrays.items()}
'''

_LOADER_WEIGHTS = '''

def weights():
    """Matrices, which the graphs take as inputs."""
    from safetensors import safe_open

    for path in Path({folder!r}).glob("*.safetensors"):
        with safe_open(path, "pt") as tensors:
            found = {{name: tensors.get_tensor(name) for name in tensors.keys()}}
        yield from ((name, one) for name, one in found.items() if one.dim() > 1)
'''

_LOADER_FUNCTION = '''

def {function}():
    """Inputs of {graph}.onnx."""
    yield {inputs}
'''


def write_repeat(
    directory: Path,
    build: Build,
    runners: list[GraphRunner],
    reference: IterationResult,
) -> Path:
    """Write loader, inputs, reference outputs and commands; the path of the commands.

    The runners have just run the sequence for which `reference` is transformers' result.
    """
    directory.mkdir(parents=True, exist_ok=True)
    cases = _once_each(case for runner in runners for case in _cases(runner, reference))
    for case in cases:
        inputs: dict[str, Any] = {name: _storable(a) for name, a in case.call.feed.items()}
        np.savez(directory / f"{case.name}.npz", **inputs)
        _save_reference(directory / f"{case.name}.reference.json", case)
    (directory / LOADER).write_text(_loader(build, cases))
    commands = directory / COMMANDS
    lines = ["#!/bin/sh", 'cd "$(dirname "$0")"', *commands_for(build, cases)]
    commands.write_text("\n".join(lines) + "\n")
    commands.chmod(0o755)
    return commands


def _loader(build: Build, cases: list[Case]) -> str:
    """The script that gives Polygraphy the inputs of each case."""
    parts, inputs = [_LOADER_HEADER], 'load("{}.npz")'
    if build.manifest.graph_options.share_weights:
        folder = (build.directory / build.manifest.weights[0].file).parent.absolute()
        parts.append(_LOADER_WEIGHTS.format(folder=str(folder)))
        inputs += " | dict(weights())"
    for case in cases:
        given = inputs.format(case.name)
        parts.append(
            _LOADER_FUNCTION.format(function=case.name, graph=case.call.graph, inputs=given)
        )
    return "".join(parts)


def _cases(runner: GraphRunner, reference: IterationResult) -> list[Case]:
    """The last prefill chunk and the first decode step of a runner's graphs."""
    decode_logits = np.asarray(reference[DECODE_LOGITS])
    same_weights = runner.build.manifest.quantization != "int4"
    return [
        Case(runner.last_prefill, np.asarray(reference[PREFILL_LOGITS]), lossless=same_weights),
        Case(runner.first_decode, decode_logits[:1], runner.lossless and same_weights),
    ]


def _once_each(cases: Iterable[Case]) -> list[Case]:
    """Each graph once, as the first runner ran it."""
    first: dict[str, Case] = {}
    for case in cases:
        first.setdefault(case.name, case)
    return list(first.values())


def _save_reference(path: Path, case: Case) -> None:
    """transformers' logits in Polygraphy's own format, under the graph's output name."""
    # Every batch slot runs the same sequence.
    rows = np.broadcast_to(case.reference, case.call.logits.shape).copy()
    results = RunResults()
    results.append(("transformers", [IterationResult(OrderedDict([(names.LOGITS, rows)]), 0.0)]))
    results.save(str(path))


def _storable(array: Array) -> Array:
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
