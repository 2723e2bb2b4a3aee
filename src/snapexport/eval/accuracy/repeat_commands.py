"""`polygraphy run` for one case: on ONNX Runtime, and on TensorRT where the build is for it."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from snapexport.contract.build_directory import Build
from snapexport.contract.engines import EngineEntry
from snapexport.contract.targets import capabilities
from snapexport.eval.accuracy.difference import tolerance
from snapexport.eval.accuracy.graph_runner import Call
from snapexport.eval.accuracy.sequence import Array

LOADER = "load_data.py"

_COSTS = "# A difference here is what compression, or 4-bit weights, cost.\n"
_ON_A_GPU = (
    "# With TensorRT and a GPU, from the graph: this builds an engine, and takes its time.\n"
    "# PLUGINS=/path/to/libsnapexport_registering.so fuses the hand-over.\n"
    "# Where polygraphy does not find CUDA's runtime, which pip puts elsewhere:\n"
    "# export LD_LIBRARY_PATH=$(dirname $(python -c 'import cuda.pathfinder as p; "
    'print(p.load_nvidia_dynamic_lib("cudart").abs_path)\'))'
)
_PLUGINS = '${PLUGINS:+--plugins "$PLUGINS"}'
_NEEDED_PLUGINS = '--plugins "${PLUGINS:?has to name libsnapexport_registering.so}"'


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


def commands_for(build: Build, cases: list[Case]) -> list[str]:
    """Lines of a shell script. ONNX Runtime can't calculate in bf16 on the CPU."""
    lines = []
    if build.manifest.dtype != "bf16":
        lines += [_command(build, case, _graph(build, case), "--onnxrt") for case in cases]
    if capabilities(build.manifest.target).compiled:
        on_tensorrt = f"--trt --strongly-typed {_PLUGINS}"
        lines.append(_ON_A_GPU)
        lines += [_command(build, case, _graph(build, case), on_tensorrt) for case in cases]
    return [*lines, *_of_engines(build, cases)]


def _of_engines(build: Build, cases: list[Case]) -> Iterable[str]:
    """What `snapexport engine` has built."""
    here = _machine()
    for name, entry in build.manifest.engines.items():
        what = f"# The engine {name}, on {entry.gpu} with TensorRT {entry.tensorrt}"
        if entry.stripped:
            yield f"{what}, is stripped: polygraphy cannot give it its weights."
        elif here and not _may_run(entry, *here):
            yield f"{what}, is for another machine: repeat the comparison there."
        else:
            yield f"{what}" + (": needs PLUGINS, as above." if entry.needs_plugins else ".")
            yield from _of_engine(build, entry, cases)


def _of_engine(build: Build, entry: EngineEntry, cases: list[Case]) -> Iterable[str]:
    plugins = [_NEEDED_PLUGINS] if entry.needs_plugins else []
    how = " ".join(["--model-type engine --trt", *plugins])
    for case in cases:
        if plan := entry.plans.get(case.call.graph):
            yield _command(build, case, build.directory / plan.file, how)


def _machine() -> tuple[str, str] | None:
    """TensorRT's version and the GPU's name, where both are at hand."""
    try:
        trt, cuda = map(import_module, ("tensorrt", "cuda.bindings.runtime"))
    except (ImportError, OSError):
        return None
    problem, properties = cuda.cudaGetDeviceProperties(0)
    return None if problem else (trt.__version__, properties.name.decode().rstrip("\0"))


def _may_run(entry: EngineEntry, tensorrt: str, gpu: str) -> bool:
    """As far as names tell."""
    for_version = entry.version_compatible or entry.tensorrt == tensorrt
    return for_version and (entry.hardware_compatibility != "none" or entry.gpu == gpu)


def _graph(build: Build, case: Case) -> Path:
    return build.graph(case.call.graph)


def _command(build: Build, case: Case, model: Path, how: str) -> str:
    return ("" if case.lossless else _COSTS) + " ".join(
        [
            f"polygraphy run {shlex.quote(str(model.absolute()))} {how}",
            f"--data-loader-script {LOADER}:{case.name}",
            f"--load-outputs {case.name}.reference.json",
            f"--atol {tolerance(build.manifest)} --rtol 0 --check-error-stat max",
        ]
    )
