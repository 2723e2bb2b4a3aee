"""A tiny model whose layers may differ in their heads, as traces and as a build.

Positions have embeddings, so that order counts. Weights are random, the same for a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from snapexport.builder.graph_files import Traces, finished_graphs, write_graph
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.exclusions import resolved
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.manifest import FORMAT_VERSION, WEIGHTS, Manifest
from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.slots import folded
from snapexport.contract.targets import Target
from snapexport.files.dtypes import BY_FLAG, DType
from snapexport.graphs.markers import ATTENTION, TRACE_DOMAIN
from snapexport.graphs.passes.base import fresh, int64s, node
from snapexport.graphs.recipe import Recipe
from snapexport.graphs.surgery import IR_VERSION
from snapexport.methods.table import graph_options
from tests.facts import model_facts

Array = NDArray[Any]
WIDTH, VOCABULARY, POSITIONS = 32, 97, 512


@dataclass(frozen=True)
class Layer:
    """cache_of: the layer whose cache it reads; None: its own. scale: of products."""

    heads: int = 4
    kv_heads: int = 2
    key_dim: int = 16
    value_dim: int = 16
    window: int = 0
    chunk: int = 0
    sinks: bool = False
    softcap: float = 0.0
    cache_of: int | None = None

    @property
    def scale(self) -> float:
        return 1.5 * self.key_dim**-0.5


@dataclass(frozen=True)
class Layered:
    """The layers of a model."""

    layers: tuple[Layer, ...]
    seed: int = 0

    @cached_property
    def weights(self) -> dict[str, Array]:
        rng = np.random.default_rng(self.seed)

        def random(*shape: int, gain: float = 1.0) -> Array:
            return (gain * rng.standard_normal(shape, np.float32)).astype(np.float32)

        found = {"embed": random(VOCABULARY, WIDTH), "places": random(POSITIONS, WIDTH, gain=0.5)}
        for index, one in enumerate(self.layers):
            shapes = {
                "q": (WIDTH, one.heads * one.key_dim),
                "k": (WIDTH, one.kv_heads * one.key_dim),
                "v": (WIDTH, one.kv_heads * one.value_dim),
                "o": (one.heads * one.value_dim, WIDTH),
            }
            for name, shape in shapes.items():
                found[f"{index}.{name}"] = random(*shape, gain=1.2 * shape[0] ** -0.5)
            found[f"{index}.sink"] = random(one.heads)
        return found | {"head": random(WIDTH, VOCABULARY, gain=3 * WIDTH**-0.5)}

    def source(self, layer: int) -> int:
        """The layer whose cache a layer reads."""
        cache_of = self.layers[layer].cache_of
        return layer if cache_of is None else cache_of

    @property
    def facts(self) -> ModelFacts:
        layers, count = self.layers, len(self.layers)
        heads: dict[str, Any] = {
            "num_attention_heads": folded([one.heads for one in layers]),
            "num_key_value_heads": folded([one.kv_heads for one in layers]),
            "head_dim": folded([one.key_dim for one in layers]),
            "attention_sinks": folded([one.sinks for one in layers]),
        }
        if any(one.key_dim != one.value_dim for one in layers):
            heads["value_head_dim"] = folded([one.value_dim for one in layers])
        if any(self.source(layer) != layer for layer in range(count)):
            heads["cache_of"] = tuple(map(self.source, range(count)))
        limits = {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS}
        if any(layer.chunk for layer in layers):
            heads["attention_chunk_size"] = tuple(layer.chunk for layer in layers)
        windows = [one.window for one in layers]
        return model_facts(count, sliding_window=windows, **heads, **limits)

    def trace(self, name: str, rows: int, tokens: int, dtype: DType = "fp32") -> onnx.ModelProto:
        """What the exporter makes. name: prefill, or decode."""
        numpy = np.dtype(BY_FLAG[dtype].numpy)
        traced = _Trace(self, gs.Graph(opset=24), rows, tokens, numpy)
        traced.write(name)
        opsets = [("", 24), (TRACE_DOMAIN, 1)]
        model: onnx.ModelProto = gs.export_onnx(
            traced.graph, opset_imports=[onnx.helper.make_opsetid(*one) for one in opsets]
        )
        model.ir_version = IR_VERSION
        return model


class _Trace:
    def __init__(
        self, model: Layered, graph: gs.Graph, rows: int, tokens: int, dtype: np.dtype[Any]
    ) -> None:
        self.model, self.graph, self.rows, self.tokens = model, graph, rows, tokens
        self.dtype = dtype

    def write(self, name: str) -> None:
        ids = self._input(names.INPUT_IDS, self.rows, self.tokens)
        positions = self._positions(name)
        hidden = self._op("Add", self._rows_of("embed", ids), self._rows_of("places", positions))
        for index in range(len(self.model.layers)):
            hidden = self._op("Add", hidden, self._layer(index, hidden))
        if name == "prefill":
            length = self._input(names.CHUNK_LENGTH, 1)
            last = self._op("Sub", length, int64s(self.graph, 1))
            (hidden,) = node(self.graph, "Gather", [hidden, last], axis=1)
        shape = (self.rows, VOCABULARY)
        if name != "prefill" and self.tokens > 1:
            shape = (self.rows, self.tokens, VOCABULARY)
        product = self._op("MatMul", self._normed(hidden), self._weight("head"))
        (flat,) = node(self.graph, "Cast", [product], to=onnx.TensorProto.FLOAT)
        logits = gs.Variable(names.LOGITS, np.float32, shape)
        node(self.graph, "Reshape", [flat, int64s(self.graph, *shape)], [logits])
        self.graph.outputs.append(logits)
        given = {tensor.name for tensor in (*self.graph.inputs, logits)}
        for one in (*self.graph.nodes, *self.graph.tensors().values()):
            if one.name not in given:  # passes number their names from 1 on, as this class does
                one.name = f"traced.{one.name}"

    def _positions(self, name: str) -> gs.Tensor:
        if name != "prefill":
            return self._input(names.POSITION_IDS, self.rows, self.tokens)
        offsets = int64s(self.graph, *range(self.tokens))
        flat = self._op("Add", self._input(names.PAST_LENGTH, 1), offsets)
        return self._op("Unsqueeze", flat, int64s(self.graph, 0))

    def _layer(self, index: int, hidden: gs.Tensor) -> gs.Tensor:
        one, normed = self.model.layers[index], self._normed(hidden)
        inputs = [
            self._heads(normed, f"{index}.q", one.heads, one.key_dim),
            self._heads(normed, f"{index}.k", one.kv_heads, one.key_dim),
            self._heads(normed, f"{index}.v", one.kv_heads, one.value_dim),
        ]
        inputs += [self._weight(f"{index}.sink")] if one.sinks else []
        shape = (self.rows, self.tokens, one.heads, one.value_dim)
        out = gs.Variable(fresh(self.graph, "attended"), self.dtype, shape)
        attributes = {"layer": index, "scale": one.scale, "window": one.window}
        attributes |= {"softcap": one.softcap, "latent": 0}
        attributes |= {"chunk": one.chunk} if one.chunk else {}
        node(self.graph, ATTENTION, inputs, [out], domain=TRACE_DOMAIN, **attributes)
        flat = int64s(self.graph, self.rows, self.tokens, one.heads * one.value_dim)
        return self._op("MatMul", self._op("Reshape", out, flat), self._weight(f"{index}.o"))

    def _heads(self, normed: gs.Tensor, weight: str, heads: int, width: int) -> gs.Tensor:
        flat = self._op("MatMul", normed, self._weight(weight))
        split = self._op("Reshape", flat, int64s(self.graph, self.rows, self.tokens, heads, width))
        shape = (self.rows, heads, self.tokens, width)
        states = gs.Variable(fresh(self.graph, "states"), self.dtype, shape)
        return node(self.graph, "Transpose", [split], [states], perm=[0, 2, 1, 3])[0]

    def _normed(self, hidden: gs.Tensor) -> gs.Tensor:
        ones = gs.Constant(fresh(self.graph, "ones"), np.ones(WIDTH, self.dtype))
        return node(self.graph, "RMSNormalization", [hidden, ones], axis=-1, epsilon=1e-6)[0]

    def _rows_of(self, weight: str, index: gs.Tensor) -> gs.Tensor:
        return self._op("Gather", self._weight(weight), index)

    def _op(self, op: str, *inputs: gs.Tensor) -> gs.Tensor:
        return node(self.graph, op, list(inputs))[0]

    def _weight(self, name: str) -> gs.Constant:
        return gs.Constant(fresh(self.graph, name), self.model.weights[name].astype(self.dtype))

    def _input(self, name: str, *shape: int) -> gs.Variable:
        value = gs.Variable(name, np.int64, shape)
        self.graph.inputs.append(value)
        return value


WINDOW, CHUNK = 10, 11

MODELS = {
    "gemma-4": Layered(
        (
            Layer(window=WINDOW),
            Layer(kv_heads=1, key_dim=32, value_dim=32),
            Layer(window=WINDOW),
            Layer(kv_heads=1, key_dim=32, value_dim=32),
        )
    ),
    "gemma-4, shared caches": Layered(
        (
            Layer(window=WINDOW),
            Layer(kv_heads=1, key_dim=32, value_dim=32),
            Layer(window=WINDOW, cache_of=0),
            Layer(kv_heads=1, key_dim=32, value_dim=32, cache_of=1),
        )
    ),
    "a shared cache in the middle": Layered(
        (Layer(), Layer(cache_of=0), Layer(heads=2, kv_heads=1, key_dim=24, sinks=True))
    ),
    "llama-4": Layered((Layer(chunk=CHUNK), Layer(), Layer(chunk=CHUNK, cache_of=0))),
    "chunks longer than prompts": Layered((Layer(chunk=70, sinks=True), Layer())),
    "mimo": Layered(
        (
            Layer(key_dim=24),
            Layer(kv_heads=4, key_dim=24, window=WINDOW, sinks=True),
            Layer(kv_heads=4, key_dim=24, window=WINDOW, sinks=True),
        )
    ),
    "other heads, soft cap": Layered(
        (Layer(heads=2, softcap=3.0), Layer(heads=8, kv_heads=4, softcap=3.0))
    ),
}


def build(
    model: Layered,
    geometry: CacheGeometry,
    out: Path,
    *,
    target: Target = "onnxruntime",
    dtype: DType = "fp32",
    chunk: int = 16,
    batch: int = 2,
    batches: Sequence[int] = (),
    baseline: bool = False,
    capacities: Sequence[int] = (),
    **options: Any,
) -> Build:
    """A build without weight files: its graphs hold their weights."""
    given = resolved(graph_options({"share_weights": False} | options), target, dtype)
    form = given if geometry.compresses else given.of_full_cache()
    models = {"prefill": model.trace("prefill", 1, chunk, dtype)}
    for rows in (batch, *batches):
        end = "" if rows == batch else f".{rows}"
        models[f"decode{end}"] = model.trace("decode", rows, 1, dtype)
        if (tokens := geometry.steps.tokens) > 1:
            models[f"verify{end}"] = model.trace("decode", rows, tokens, dtype)
    traces = Traces(models, chunk)
    (out / WEIGHTS).mkdir(parents=True)
    recipe = Recipe(geometry, target, form)
    graphs = finished_graphs(traces, recipe, prefill_capacities=capacities, baseline=baseline)
    entries = {name: write_graph(name, graph, out) for name, graph in graphs.items()}
    Manifest(
        format_version=FORMAT_VERSION,
        model=model.facts,
        geometry=geometry,
        batch=batch,
        prefill_chunk=chunk,
        dtype=dtype,
        quantization=None,
        target=target,
        graph_options=form,
        graphs=entries,
        traces=traces.write(out) if baseline else {},
        tensor_parallel=1,
        segments={},
        weights=[],
        linked_weights=False,
        engines={},
        versions={},
    ).write(out)
    return Build.open(out)
