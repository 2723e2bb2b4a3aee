"""Keeps traces on disk, by a key of all their inputs, so that tests trace each model once.

A trace takes seconds and depends on a config, a dtype, prefill's number of tokens, the exporter's
sources and four libraries: these are the key. The folder is shared by the workers of a run, and by
runs. Processes that tests start trace for themselves. SNAPEXPORT_TRACE_CACHE=off traces everything
anew; `pytest --cache-clear` empties the folder.

The table of PyTorch's operators in ONNX is kept too: torch.onnx.export makes it anew each time,
which is a third of a trace.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx_ir import tensor_adapters
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import snapexport

LIBRARIES = ("torch", "transformers", "onnxscript", "onnx-ir")
NO_DATA = "no data"
"""Stands for a weight file's name, for an initializer without data."""

Trace = Callable[..., ir.Model]


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Builds of this process take their traces from `folder`, and put new ones there."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    from snapexport.exporter import mtp, trace

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", once(ONNXRegistry.from_torchlib))
        for trace_one in (trace.trace_prefill, trace.trace_decode):
            patch.setattr(trace, trace_one.__name__, caching(trace_one, folder))
        for trace_one in (mtp.trace_mtp, mtp.trace_mtp_prefill):
            patch.setattr(mtp, trace_one.__name__, caching(trace_one, folder))
        yield


def caching(trace: Trace, folder: Path) -> Trace:
    """The same function, which looks into `folder` first."""

    @wraps(trace)
    def cached(config: Any, dtype: torch.dtype, *tokens: int) -> ir.Model:
        path = folder / f"{key(trace.__name__, config, dtype, *tokens)}.onnx"
        if path.is_file():
            return load(path)
        model = trace(config, dtype, *tokens)
        save(model, path)
        return model

    return cached


def once(make: Callable[..., Any]) -> Any:
    """A class method as one that makes its result once for all callers, who only read it."""
    return staticmethod(cache(make))


def key(name: str, config: Any, dtype: torch.dtype, *tokens: int) -> str:
    """Two checkpoints of one config have one key, wherever they lie."""
    described = type(config).__name__, config.to_dict() | {"_name_or_path": ""}
    made_by = [name, described, str(dtype), tokens, sources(), [version(one) for one in LIBRARIES]]
    return hashlib.sha256(json.dumps(made_by, sort_keys=True, default=str).encode()).hexdigest()


@cache
def sources() -> str:
    """Hash of the sources that take part in tracing."""
    package = Path(snapexport.__file__).parent
    files = [*sorted((package / "exporter").resolve().rglob("*.py")), package / "contract/names.py"]
    files += sorted((package / "graphs").resolve().glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def save(model: ir.Model, path: Path) -> None:
    """Write the graph and, of initializers without data, types and shapes."""
    values = {v: v.const_value for v in model.graph.initializers.values() if is_fake(v)}
    for value, tensor in values.items():
        assert tensor is not None
        value.const_value = ir.ExternalTensor(
            NO_DATA, 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=str(value.name)
        )
    written = ir.to_proto(model).SerializeToString()
    for value, tensor in values.items():
        value.const_value = tensor
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(written)
    partial.replace(path)


def load(path: Path) -> ir.Model:
    model = ir.from_proto(onnx.load(path, load_external_data=False))
    with FakeTensorMode() as fake:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and tensor.location == NO_DATA:
                value.const_value = without_data(tensor, fake)
    return model


def without_data(tensor: ir.ExternalTensor, fake: FakeTensorMode) -> ir.TensorProtocol:
    dtype = tensor_adapters.to_torch_dtype(tensor.dtype)
    empty = torch.empty(tensor.shape.numpy(), dtype=dtype)
    assert isinstance(empty, FakeTensor)
    return tensor_adapters.TorchTensor(empty, name=tensor.name)


def is_fake(value: ir.Value) -> bool:
    return isinstance(getattr(value.const_value, "raw", None), FakeTensor)
