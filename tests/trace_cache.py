"""Keeps traces on disk, by a key of all their inputs, so that tests trace each model once.

A trace takes seconds and depends on a config, a dtype, prefill's number of tokens, the exporter's
sources and five libraries: these are the key. What `simplify` makes of a trace is kept too, by the
trace itself: it was two thirds of a build whose traces came from here. The folder is shared by the
workers of a run, and by runs. Processes that tests start trace for themselves.
SNAPEXPORT_TRACE_CACHE=off traces everything anew; `pytest --cache-clear` empties the folder.

The table of PyTorch's operators in ONNX is kept too: torch.onnx.export makes it anew each time,
which is a third of a trace.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx_ir import tensor_adapters
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import snapexport

LIBRARIES = ("torch", "transformers", "onnxscript", "onnx-ir", "onnx")
NO_DATA = "no data"
"""Stands for a weight file's name, for an initializer without data."""

Trace = Callable[..., ir.Model]
Simplify = Callable[[ir.Model], None]

_folders: list[Path] = []


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Builds of this process take their traces from `folder`, and put new ones there."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    from snapexport.exporter import trace
    from snapexport.exporter.trace import link, mtp

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", once(ONNXRegistry.from_torchlib))
        for trace_one in (trace.trace_prefill, trace.trace_decode):
            patch.setattr(trace, trace_one.__name__, caching(trace_one, folder))
        for trace_one in (mtp.trace_mtp, mtp.trace_mtp_prefill):
            patch.setattr(mtp, trace_one.__name__, caching(trace_one, folder))
        patch.setattr(link, "simplify", caching_simplify(link.simplify, folder))
        _folders.append(folder)
        try:
            yield
        finally:
            _folders.pop()


def caching(trace: Trace, folder: Path) -> Trace:
    """The same function, which looks into `folder` first."""

    @wraps(trace)
    def cached(decoder: Any, dtype: torch.dtype, *tokens: int) -> ir.Model:
        path = folder / f"{key(trace.__name__, decoder, dtype, *tokens)}.onnx"
        if path.is_file():
            return load(path)
        model = trace(decoder, dtype, *tokens)
        without_places(model)
        save(model, path)
        return model

    return cached


def of_one_process(
    traces: Callable[[], dict[str, ir.Model]], decoder: Any, dtype: torch.dtype, *made_by: object
) -> dict[str, ir.Model]:
    """`traces()` of a model, which one process made, now or before. made_by: what else did.

    So they can be compared: Gemma 3 computes its two RoPEs in the order of a set of strings, which
    differs between processes.
    """
    if not _folders:
        return traces()
    stem = key("traces", decoder, dtype, *made_by)
    folder = _folders[-1] / stem
    if not folder.is_dir():
        partial = folder.with_suffix(f".{os.getpid()}")
        for name, model in traces().items():
            without_places(model)
            save(model, partial / f"{name}.onnx")
        try:
            partial.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(partial)
    return {path.stem: load(path) for path in folder.iterdir()}


def caching_simplify(simplify: Simplify, folder: Path) -> Simplify:
    """The same function, which looks into `folder` first."""

    @wraps(simplify)
    def cached(model: ir.Model) -> None:
        path = folder / f"{simplify_key(model)}.onnx"
        if path.is_file():
            model.graph = read(path).graph
        else:
            simplify(model)
            save(model, path)

    return cached


def once(make: Callable[..., Any]) -> Any:
    """A class method as one that makes its result once for all callers, who only read it."""
    return staticmethod(cache(make))


def key(name: str, decoder: Any, dtype: torch.dtype, *tokens: object) -> str:
    """Two checkpoints of one config have one key, wherever they lie."""
    configs = [
        (type(one).__name__, one.to_dict() | {"_name_or_path": ""})
        for one in (decoder.config, decoder.whole)
        if one is not None
    ]
    described = configs, str(replace(decoder, config=None, whole=None))
    made_by = [name, described, str(dtype), tokens, sources(), libraries()]
    return hashlib.sha256(json.dumps(made_by, sort_keys=True, default=str).encode()).hexdigest()


def simplify_key(model: ir.Model) -> str:
    """Two traces of the same bytes have one key, whatever made them."""
    made_by = hashlib.sha256(serialized(model))
    made_by.update(json.dumps(["simplify", sources(), libraries()]).encode())
    return made_by.hexdigest()


@cache
def libraries() -> list[str]:
    return [version(library) for library in LIBRARIES]


@cache
def sources() -> str:
    """Hash of the sources that take part in tracing."""
    package = Path(snapexport.__file__).parent
    files = [*sorted((package / "exporter").resolve().rglob("*.py")), package / "contract/names.py"]
    files += sorted((package / "graphs").resolve().glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def save(model: ir.Model, path: Path) -> None:
    written = serialized(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(written)
    partial.replace(path)


def without_places(model: ir.Model) -> None:
    """Drop what tells which Python made each node, as `link` does: nine tenths of the bytes."""
    ClearMetadataAndDocStringPass()(model)


def serialized(model: ir.Model) -> bytes:
    """The graph and, of initializers without data, types and shapes."""
    values = {v: v.const_value for v in model.graph.initializers.values() if has_no_data(v)}
    for value in values:
        assert value.dtype is not None and value.shape is not None
        value.const_value = ir.ExternalTensor(
            NO_DATA, None, None, value.dtype, shape=value.shape, name=str(value.name)
        )
    written = ir.to_proto(model).SerializeToString(deterministic=True)
    for value, tensor in values.items():
        value.const_value = tensor
    return written


def load(path: Path) -> ir.Model:
    """A trace, whose weights are fake tensors. Those of one shape share one."""
    model, empties = read(path), dict[tuple[Any, ...], FakeTensor]()
    with FakeTensorMode():
        for value in model.graph.initializers.values():
            if value.const_value is None:
                value.const_value = without_data(value, empties)
    return model


def read(path: Path) -> ir.Model:
    """What `save` wrote. Initializers without data have none at all."""
    model = ir.from_proto(onnx.load(path, load_external_data=False))
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and tensor.location == NO_DATA:
            value.const_value = None
    return model


def without_data(value: ir.Value, empties: dict[tuple[Any, ...], FakeTensor]) -> ir.TensorProtocol:
    assert value.dtype is not None and value.shape is not None
    described = value.dtype, *value.shape.numpy()
    if described not in empties:
        dtype = tensor_adapters.to_torch_dtype(value.dtype)
        empty = torch.empty(value.shape.numpy(), dtype=dtype)
        assert isinstance(empty, FakeTensor)
        empties[described] = empty
    return tensor_adapters.TorchTensor(empties[described], name=value.name)


def has_no_data(value: ir.Value) -> bool:
    return value.const_value is None or is_fake(value)


def is_fake(value: ir.Value) -> bool:
    return isinstance(getattr(value.const_value, "raw", None), FakeTensor)
