"""One graph in Polygraphy's hands: ONNX Runtime's runner on the CPU, or TensorRT's on a GPU.

Both take and give NumPy arrays that are the caller's own, bf16 as ml_dtypes has it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import torch
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.backend.trt import TrtRunner

from snapexport.accuracy.sequence import Array, Feed
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import GraphName

Infer = Callable[[Feed], Feed]
Backend = Callable[[GraphName], AbstractContextManager[Infer]]
"""Loads a graph, and drops it at the end."""

LoadPlan = Callable[[GraphName], Any]
"""Gives a graph's engine as TensorRT has it: deserialized, with its plugins and its weights."""


def on_onnxruntime(build: Build) -> Backend:
    """The build's ONNX files."""

    @contextmanager
    def load(graph: GraphName) -> Iterator[Infer]:
        with OnnxrtRunner(SessionFromOnnx(str(build.graph(graph))), name=graph) as runner:
            yield runner.infer

    return load


def on_tensorrt(load_plan: LoadPlan) -> Backend:
    """The build's plans.

    Polygraphy asks TensorRT which output shares the memory of which input, and binds it there; the
    memory is its own, filled from the feed before each run. Tensors of torch, since NumPy has no
    bf16; copies, since the next run writes over what this one gave.
    """

    @contextmanager
    def load(graph: GraphName) -> Iterator[Infer]:
        with TrtRunner(lambda: load_plan(graph), name=graph) as runner:
            yield lambda feed: _arrays(runner.infer(_tensors(feed)))

    return load


def _tensors(feed: Feed) -> dict[str, torch.Tensor]:
    return {name: _tensor(np.ascontiguousarray(array)) for name, array in feed.items()}


def _tensor(array: Array) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _arrays(out: dict[str, torch.Tensor]) -> Feed:
    return {name: _array(tensor).copy() for name, tensor in out.items()}


def _array(tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
