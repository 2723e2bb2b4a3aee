"""`polygraphy run` for one case: on ONNX Runtime, and on TensorRT where the build is for it."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from snapexport.accuracy.difference import tolerance
from snapexport.accuracy.graph_runner import Call
from snapexport.accuracy.sequence import Array
from snapexport.contract.build_directory import Build

LOADER = "load_data.py"

_COSTS = "# A difference here is what compression, or 4-bit weights, cost.\n"
_ON_A_GPU = (
    "# With TensorRT and a GPU, from the graph: this builds an engine, and takes its time.\n"
    "# PLUGINS=/path/to/libsnapexport_registering.so fuses the hand-over."
)
_PLUGINS = '${PLUGINS:+--plugins "$PLUGINS"}'


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
    if build.manifest.target == "tensorrt":
        on_tensorrt = f"--trt --strongly-typed {_PLUGINS}"
        lines.append(_ON_A_GPU)
        lines += [_command(build, case, _graph(build, case), on_tensorrt) for case in cases]
    return [*lines, *_of_engines(build, cases)]


def _of_engines(build: Build, cases: list[Case]) -> Iterable[str]:
    """What `snapexport engine` has built. A stripped plan has no weights to be run with."""
    for name, entry in build.manifest.engines.items():
        if entry.stripped:
            yield f"# The engine {name} is stripped: polygraphy cannot give it its weights."
            continue
        yield f"# The engine {name}, on {entry.gpu} with TensorRT {entry.tensorrt}."
        for case in cases:
            if plan := entry.plans.get(case.call.graph):
                path = build.directory / plan.file
                yield _command(build, case, path, f"--model-type engine --trt {_PLUGINS}")


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
