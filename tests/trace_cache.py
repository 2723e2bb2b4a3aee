"""Keeps traces in the store, by a key of all their inputs, so that tests trace each model once.

A trace takes seconds and depends on a config, a dtype, prefill's number of tokens, the sources of
tracing and the installed packages: these are the key. What `simplify` makes of a trace is kept too,
by the trace itself: it was two thirds of a build whose traces came from here. A test that replaces
a part of what traces, and processes that tests start, trace for themselves.

PyTorch's operators in ONNX are listed once: torch.onnx.export takes a third of a trace for that.
"""

import hashlib
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, wraps
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx_ir import tensor_adapters
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tests import sources
from tests.builds import is_replaced
from tests.store import Store

NO_DATA = "no data"
"""Stands for a weight file's name, for an initializer without data."""

Trace = Callable[..., ir.Model]
Simplify = Callable[[ir.Model], None]

_stores: list[Store] = []


@contextmanager
def kept_in(store: Store) -> Iterator[None]:
    """Builds of this process take their traces from `store`, and put new ones there."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    from snapexport.exporter import trace
    from snapexport.exporter.trace import link
    from snapexport.methods.mtp import export as mtp

    with pytest.MonkeyPatch.context() as patch:
        only_read = staticmethod(cache(ONNXRegistry.from_torchlib))  # so one table does for all
        patch.setattr(ONNXRegistry, "from_torchlib", only_read)
        for trace_one in (trace.trace_prefill, trace.trace_decode):
            patch.setattr(trace, trace_one.__name__, caching(trace_one, store))
        for trace_one in (mtp.trace_mtp, mtp.trace_mtp_prefill):
            patch.setattr(mtp, trace_one.__name__, caching(trace_one, store))
        patch.setattr(link, "simplify", caching_simplify(link.simplify, store))
        _stores.append(store)
        try:
            yield
        finally:
            _stores.pop()


def caching(trace: Trace, store: Store) -> Trace:
    """The same function, which looks into `store` first."""

    @wraps(trace)
    def cached(decoder: Any, dtype: torch.dtype, *tokens: int) -> ir.Model:
        def traced() -> bytes:
            made.append(trace(decoder, dtype, *tokens))
            without_places(made[0])
            return serialized(made[0])

        made: list[ir.Model] = []
        if is_replaced(trace.__module__):
            return trace(decoder, dtype, *tokens)
        name = f"trace-{key(trace.__name__, trace.__module__, decoder, dtype, *tokens)}"
        content = store.content(name, traced)
        return made[0] if made else load(content)

    return cached


def of_one_process(
    traces: Callable[[], dict[str, ir.Model]], decoder: Any, dtype: torch.dtype, *made_by: object
) -> dict[str, ir.Model]:
    """`traces()` of a model, which one process made, now or before. made_by: what else did.

    So they can be compared: Gemma 3 computes its two RoPEs in the order of a set of strings, which
    differs between processes.
    """
    if not _stores:
        return traces()

    def written() -> bytes:
        made = traces()
        for model in made.values():
            without_places(model)
        return pickle.dumps({name: serialized(model) for name, model in made.items()})

    name = f"traces-{key('traces', traces.__module__, decoder, dtype, *made_by)}"
    found: dict[str, bytes] = pickle.loads(_stores[-1].content(name, written))
    return {name: load(content) for name, content in found.items()}


def caching_simplify(simplify: Simplify, store: Store) -> Simplify:
    """The same function, which looks into `store` first."""

    @wraps(simplify)
    def cached(model: ir.Model) -> None:
        def simplified() -> bytes:
            simplify(model)
            made.append(model)
            return serialized(model)

        made: list[ir.Model] = []
        if is_replaced(simplify.__module__):
            simplify(model)
            return
        name = f"simplified-{simplify_key(model, simplify.__module__)}"
        content = store.content(name, simplified)
        if not made:
            model.graph = read(content).graph

    return cached


def key(name: str, module: str, decoder: Any, dtype: torch.dtype, *tokens: object) -> str:
    """Two checkpoints of one config have one key, wherever they are. module: of what traces."""
    configs = [
        (type(one).__name__, one.to_dict() | {"_name_or_path": ""})
        for one in (decoder.config, decoder.whole)
        if one is not None
    ]
    described = configs, str(replace(decoder, config=None, whole=None))
    made_by = [name, described, str(dtype), tokens, sources.digest(module)]
    return hashlib.sha256(json.dumps(made_by, sort_keys=True, default=str).encode()).hexdigest()


def simplify_key(model: ir.Model, module: str) -> str:
    """Two traces of the same bytes have one key, whatever made them. module: of what simplifies."""
    return hashlib.sha256(serialized(model) + sources.digest(module).encode()).hexdigest()


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


def load(content: bytes) -> ir.Model:
    """A trace, whose weights are fake tensors. Those of one shape share one."""
    model, empties = read(content), dict[tuple[Any, ...], FakeTensor]()
    with FakeTensorMode():
        for value in model.graph.initializers.values():
            if value.const_value is None:
                value.const_value = without_data(value, empties)
    return model


def read(content: bytes) -> ir.Model:
    """What `serialized` wrote. Initializers without data have none at all."""
    model = ir.from_proto(onnx.load_model_from_string(content))
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
