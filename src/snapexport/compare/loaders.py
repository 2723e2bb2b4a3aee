"""Loads one graph into a runner of Polygraphy: ONNX Runtime's on the CPU, or TensorRT's on a GPU.

Both take and return NumPy arrays that belong to the caller, bf16 in ml_dtypes' type. Knows no
sequence.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from polygraphy import cuda as polygraphy_cuda
from polygraphy.backend.onnxrt import OnnxrtRunner
from polygraphy.backend.trt import TrtRunner
from polygraphy.exception import PolygraphyException
from polygraphy.logger import G_LOGGER

from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import GraphName
from snapexport.errors import UserError, first_line, needs_extra
from snapexport.runtime.ort.session import session_options

with needs_extra("cpu"):
    from onnxruntime import ExecutionOrder, InferenceSession

Array = NDArray[Any]
Feed = dict[str, Array]
"""Inputs or outputs of a graph, by name."""

Infer = Callable[[Feed], Feed]
GraphLoader = Callable[[GraphName], AbstractContextManager[Infer]]
"""Loads a graph, and drops it at the end of the block."""

LoadPlan = Callable[[GraphName], Any]
"""Returns a graph's deserialized engine, with its plugins and weights."""


def on_onnxruntime(
    build: Build, shown: Mapping[GraphName, Sequence[str]] | None = None
) -> GraphLoader:
    """Loads the build's ONNX files.

    shown: tensors of a graph that become outputs, of a build that may be changed: its file is.
    """

    @contextmanager
    def load(graph: GraphName) -> Iterator[Infer]:
        file = build.graph(graph)
        if shown and graph in shown:
            _show(file, shown[graph])
        with OnnxrtRunner(lambda: _session(build, file), name=graph) as runner:
            yield runner.infer

    return load


def _show(file: Path, tensors: Sequence[str]) -> None:
    model = onnx.load(file, load_external_data=False)
    model.graph.output.extend(onnx.ValueInfoProto(name=one) for one in dict.fromkeys(tensors))
    onnx.save(model, file)


def _session(build: Build, file: Path) -> InferenceSession:
    """A session whose weights stay mapped from their files, without a copy.

    By default ONNX Runtime rearranges weights, and widens those in fp16 as it loads them. Here
    each is widened right before its product, and dropped after it.
    """
    options = session_options(None, prepack=build.manifest.holds_integers, settings={})
    options.log_severity_level = 3  # it would warn of every cache that it copies
    options.execution_order = ExecutionOrder.PRIORITY_BASED
    options.enable_cpu_mem_arena = False
    return InferenceSession(
        file,
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["FuseFp16InitializerToFp32NodeTransformer"],
    )


def on_tensorrt(load_plan: LoadPlan) -> GraphLoader:
    """Loads the build's TensorRT engines.

    Polygraphy binds an output to the memory of the input that it shares, as TensorRT says, and
    fills its own memory from the feed before each run. The feed has torch's tensors, since NumPy
    has no bf16; outputs are copied, since the next run overwrites them.
    """

    @contextmanager
    def load(graph: GraphName) -> Iterator[Infer]:
        find_cudart()
        with _polygraphy_errors(graph), TrtRunner(lambda: load_plan(graph), name=graph) as runner:
            yield lambda feed: _infer(runner, feed)

    return load


def _infer(runner: TrtRunner, feed: Feed) -> Feed:
    tensors = {name: _tensor(np.ascontiguousarray(array)) for name, array in feed.items()}
    with _polygraphy_errors(runner.name):
        return {name: _array(tensor).copy() for name, tensor in runner.infer(tensors).items()}


@contextmanager
def _polygraphy_errors(graph: GraphName) -> Iterator[None]:
    """Turns Polygraphy's errors into a UserError. Most likely the GPU has no memory left."""
    try:
        yield
    except PolygraphyException as error:
        raise UserError(
            f"Polygraphy's runner failed on {graph}: {first_line(error)}",
            "each engine needs GPU memory for a copy of the weights, its inputs and outputs: see "
            "what else runs on the GPU (`nvidia-smi`)",
        ) from error


def find_cudart() -> None:
    """Make sure that Polygraphy can load CUDA's runtime. Raises UserError.

    It searches LD_LIBRARY_PATH and the folders of CUDA's installer, but no wheels: the folder of
    the wheel is added to LD_LIBRARY_PATH.
    """
    if _polygraphy_finds_cudart():
        return
    with needs_extra("tensorrt"):
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    try:
        found = load_nvidia_dynamic_lib("cudart").abs_path
    except DynamicLibNotFoundError:
        found = None
    if found:
        folders = [str(Path(found).parent), os.environ.get("LD_LIBRARY_PATH", "")]
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
    if not found or not _polygraphy_finds_cudart():
        raise UserError(
            "Polygraphy finds no CUDA runtime library (libcudart.so)",
            "pip install 'snapexport[tensorrt]', or name its folder in LD_LIBRARY_PATH",
        )


def _polygraphy_finds_cudart() -> bool:
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        try:
            polygraphy_cuda.wrapper()
        except (OSError, PolygraphyException):
            return False
    return True


def _tensor(array: Array) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
