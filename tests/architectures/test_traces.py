"""One trace of a few layers becomes the same graphs as a trace of each graph and of every layer."""

import inspect
import re
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch

from snapexport.contract import names
from snapexport.exporter import trace
from snapexport.exporter.model.probe import load_decoder
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.trace import link, with_batch
from snapexport.exporter.weights.derived import with_derived
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan
from tests.oracle import checkpoints
from tests.trace_cache import of_one_process

pytestmark = pytest.mark.architectures

CHUNK = 24
BATCHES = (1, 3)
PREFILL, DECODE = inspect.unwrap(trace.trace_prefill), inspect.unwrap(trace.trace_decode)
"""Without the tests' cache, which has traces of several processes."""
FULL, SLIDING = "full_attention", "sliding_attention"
MODELS: dict[str, tuple[str, torch.dtype, dict[str, Any]]] = {
    "llama": ("llama", torch.float32, {"num_hidden_layers": 4}),
    "one-layer": ("llama-tied", torch.float32, {"num_hidden_layers": 1}),
    "qwen3-sliding": ("qwen3-sliding", torch.bfloat16, {}),
    "gemma3": (
        "gemma3",
        torch.float32,
        {"num_hidden_layers": 5, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL]},
    ),
    "experts": ("qwen3-moe", torch.float32, {"num_hidden_layers": 4, "mlp_only_layers": [0, 2]}),
}


class Model:
    def __init__(self, name: str, directory: Path) -> None:
        recipe, self.dtype, changes = MODELS[name]
        made = checkpoints.make(recipe, directory, dtype=self.dtype, **changes)
        self.checkpoint = open_checkpoint(made)
        self.decoder = load_decoder(self.checkpoint)

    def traces(self) -> dict[str, ir.Model]:
        return of_one_process(
            lambda: traces_of(self.decoder, self.dtype),
            self.decoder,
            self.dtype,
            Path(__file__).read_text(),
        )

    def linked(self, model: ir.Model) -> list[object]:
        sources = link.Traced.of(model, self.decoder).sources
        stored = with_derived(self.checkpoint, self.decoder).tensors
        # Only places are compared: a stack stands for its file.
        places = {name: place(name, stored[name]) for name in sources.values()}
        link.link(model, sources, places)
        return described(model.graph)


def place(name: str, tensor: Tensor) -> TensorSpan:
    if isinstance(tensor, TensorSpan):
        return tensor
    return TensorSpan(Path("weights", name), 0, tensor.nbytes, tensor.dtype, tensor.shape)


def described(graph: ir.Graph) -> list[object]:
    """Inputs, nodes and outputs in order, without names: a value is its place or its content."""
    values: dict[ir.Value, object] = {value: str(value.name) for value in graph.inputs}
    values |= {value: content(value.const_value) for value in graph.initializers.values()}
    rows: list[object] = [(value.name, value.dtype, value.shape) for value in graph.inputs]
    for node in graph:
        operator = node.domain, node.op_type, node.version
        attributes = sorted((a.name, a.type, a.value) for a in node.attributes.values())
        inputs = [values[value] if value else None for value in node.inputs]
        rows.append((operator, attributes, inputs, [(v.dtype, v.shape) for v in node.outputs]))
        values |= {value: (len(rows), at) for at, value in enumerate(node.outputs)}
    return [*rows, *((value.name, values[value], value.shape) for value in graph.outputs)]


def content(tensor: ir.TensorProtocol | None) -> object:
    if isinstance(tensor, ir.ExternalTensor):
        return tensor.location, tensor.offset, tensor.length, tensor.dtype, tensor.shape
    assert tensor is not None
    return tensor.dtype, tensor.shape, tensor.tobytes()


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(request.param, tmp_path_factory.mktemp("checkpoint"))


def test_decode_of_each_batch_equals_a_whole_trace_of_that_batch(model: Model) -> None:
    traces = model.traces()
    whole = {batch: model.linked(traces[f"whole decode {batch}"]) for batch in BATCHES}
    for batch, graph in whole.items():
        assert model.linked(with_batch(traces["decode"], batch)) == graph
    assert whole[1] != whole[3]


def test_prefill_equals_a_trace_of_every_layer(model: Model) -> None:
    traces = model.traces()
    assert model.linked(traces["prefill"]) == model.linked(traces["whole prefill"])


def traces_of(decoder: Any, dtype: torch.dtype) -> dict[str, ir.Model]:
    """Traces of a few layers, and whole ones of every layer."""
    with pytest.MonkeyPatch.context() as every_layer:
        every_layer.setattr(trace, "traced_places", lambda decoder: None)
        whole = {f"whole decode {batch}": whole_decode(decoder, dtype, batch) for batch in BATCHES}
        whole["whole prefill"] = whole_prefill(decoder, dtype)
    return whole | {"decode": DECODE(decoder, dtype), "prefill": PREFILL(decoder, dtype, CHUNK)}


def whole_decode(decoder: Any, dtype: torch.dtype, batch: int) -> ir.Model:
    shapes = {names.INPUT_IDS: (batch, 1), names.POSITION_IDS: (batch, 1)}
    return trace._trace(decoder, dtype, trace._Decode, shapes)


def whole_prefill(decoder: Any, dtype: torch.dtype) -> ir.Model:
    shapes = {names.INPUT_IDS: (1, CHUNK), names.PAST_LENGTH: (1,), names.CHUNK_LENGTH: (1,)}
    return trace._trace(decoder, dtype, trace._Prefill, shapes)


def shown(traced: ir.Model) -> list[str]:
    """The nodes without the names of constants, which the cache of traces gives them."""
    return [re.sub(r", name=[^)]*", "", str(node)) for node in traced.graph]


def test_a_trace_stays_the_same_when_a_batch_is_fixed_in_a_copy(tmp_path: Path) -> None:
    model = Model("one-layer", tmp_path)
    traced = DECODE(model.decoder, model.dtype)
    before = shown(traced)
    model.linked(with_batch(traced, 2))
    assert shown(traced) == before
    assert all(value.const_value is not None for value in traced.graph.initializers.values())
