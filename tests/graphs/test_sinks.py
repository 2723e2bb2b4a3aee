"""Attention beside learned sinks, on every target, against transformers' attention of gpt-oss."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
import torch
from numpy.typing import NDArray
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from snapexport.contract.targets import FusedShapes, Target
from snapexport.graphs.markers import CACHE_ATTENTION, CACHE_DOMAIN, PROMPT_ATTENTION
from snapexport.graphs.passes.base import node
from snapexport.graphs.targets import TARGET_PASSES, tensorrt_attention
from tests.graphs import bodies
from tests.graphs.bodies import exported

Array = NDArray[Any]
HEADS, KV_HEADS, WIDTH, SLOTS, SCALE = 4, 2, 16, 24, 0.3
TARGETS: tuple[Target, ...] = ("onnxruntime", "portable", "tensorrt", "tensorrt-rtx")
SINK = np.array([-2.0, 0.5, 3.0, 60.0], np.float32)
"""The last one is above every score: its head's output is all but zero."""
EVERY_SHAPE = FusedShapes(
    row_bytes=2**20,
    chunk_value_bytes=4,
    head_dim_step=1,
    largest_head_dim=256,
    smallest_chunk_head_dim=1,
)


def expected(inputs: dict[str, Array], key: Array, value: Array, visible: Array) -> Array:
    """[B,C,H,D] by transformers' eager attention; visible: bool [B,1,C,S]."""
    module = SimpleNamespace(
        num_key_value_groups=HEADS // KV_HEADS, sinks=torch.from_numpy(SINK), training=False
    )
    states = [torch.from_numpy(one) for one in (inputs["query"], key, value)]
    mask = torch.zeros(visible.shape).masked_fill(~torch.from_numpy(visible), -torch.inf)
    module_: Any = module
    out, _ = eager_attention_forward(module_, *states, mask, scaling=SCALE)
    return out.numpy()


def marked(op: str, inputs: dict[str, Array], **attributes: int) -> gs.Graph:
    """A graph of one marker."""
    variables = [gs.Variable(name, one.dtype, one.shape) for name, one in inputs.items()]
    batch, heads, rows, width = inputs["query"].shape
    out = gs.Variable("out", np.float32, (batch, rows, heads, width))
    caches = [one.shape for name, one in inputs.items() if name.startswith("past")]
    names = ("present.0.key", "present.0.value")
    present = [gs.Variable(n, np.float32, s) for n, s in zip(names, caches, strict=False)]
    graph = gs.Graph(inputs=variables, outputs=[out, *present], opset=24)
    sink = gs.Constant("sink", SINK)
    plain = {"layer": 0, "scale": SCALE, "window": 0, "softcap": 0.0, "latent": 0}
    node(graph, op, [*variables, sink], [out, *present], domain=CACHE_DOMAIN, **plain | attributes)
    return graph


def run(graph: gs.Graph, target: Target, inputs: dict[str, Array]) -> dict[str, Array]:
    for one in TARGET_PASSES[target]:
        one.apply(graph)
    return bodies.run(exported(graph), inputs)


def with_cache(batch: int, rows: int, slot: list[int], valid: list[int]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {
        "query": (batch, HEADS, rows, WIDTH),
        "key": (batch, KV_HEADS, rows, WIDTH),
        "value": (batch, KV_HEADS, rows, WIDTH),
        "past_key": (batch, KV_HEADS, SLOTS, WIDTH),
        "past_value": (batch, KV_HEADS, SLOTS, WIDTH),
    }
    inputs: dict[str, Array] = {n: rng.standard_normal(s, np.float32) for n, s in shapes.items()}
    return inputs | {"slot": np.array(slot), "valid": np.array(valid)}


def written(inputs: dict[str, Array], name: str) -> Array:
    """The cache after the new rows."""
    cache = inputs[f"past_{name}"].copy()
    for row, slot in enumerate(inputs["slot"]):
        cache[row, :, slot : slot + inputs[name].shape[2]] = inputs[name][row]
    return cache


def visible(inputs: dict[str, Array], window: int = 0) -> Array:
    rows, valid = inputs["query"].shape[2], inputs["valid"][:, None, None, None]
    last = valid - rows + np.arange(rows)[:, None]
    at = np.arange(SLOTS)
    return (at <= last) & (at > last - (window or SLOTS))


CASES = {
    # name: batch, rows, slot, valid, attributes
    "decode, full cache": (2, 1, [10, 20], [11, 21], {"appends": 1, "valid_only": 0}),
    "decode, ring": (2, 1, [3, 23], [24, 24], {"appends": 0, "valid_only": 0}),
    "decode, valid slots": (2, 1, [3, 7], [24, 8], {"appends": 0, "valid_only": 1}),
    "chunk": (1, 5, [10], [15], {"appends": 1, "valid_only": 0}),
    "chunk, window": (1, 5, [10], [15], {"appends": 1, "valid_only": 0, "window": 7}),
}


def compare(target: Target, name: str) -> None:
    batch, rows, slot, valid, attributes = CASES[name]
    if attributes["valid_only"] and target != "onnxruntime":
        pytest.skip("no operator reads only valid cache slots")
    inputs = with_cache(batch, rows, slot, valid)
    got = run(marked(CACHE_ATTENTION, inputs, **attributes), target, inputs)
    key, value = (written(inputs, part) for part in ("key", "value"))
    want = expected(inputs, key, value, visible(inputs, attributes.get("window", 0)))
    np.testing.assert_allclose(got["out"], want, atol=2e-6)
    held = min(valid)  # what lies behind is not copied if buffers are not shared
    np.testing.assert_array_equal(got["present.0.key"][:, :, :held], key[:, :, :held])
    assert np.abs(want[:, :, 3]).max() < 1e-9 < np.abs(want[:, :, :3]).min()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", TARGETS)
def test_cached_attention_beside_sinks_equals_transformers(target: Target, name: str) -> None:
    compare(target, name)


@pytest.mark.parametrize("name", ["chunk", "chunk, window", "decode, full cache"])
def test_fused_attention_with_a_slot_for_the_sink_equals_transformers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32, which the builder composes: as if it had a fused kernel for it."""
    monkeypatch.setattr(tensorrt_attention, "MEASURED_SHAPES", EVERY_SHAPE)
    compare("tensorrt", name)


def whole_prompt(target: Target, window: int) -> None:
    rng, length = np.random.default_rng(1), 9
    heads = {"query": HEADS, "key": KV_HEADS, "value": KV_HEADS}
    inputs: dict[str, Array] = {
        name: rng.standard_normal((1, count, length, WIDTH), np.float32)
        for name, count in heads.items()
    }
    got = run(marked(PROMPT_ATTENTION, inputs, window=window), target, inputs)
    at = np.arange(length)
    seen = (at <= at[:, None]) & (at > at[:, None] - (window or length))
    want = expected(inputs, inputs["key"], inputs["value"], seen[None, None])
    np.testing.assert_allclose(got["out"], want, atol=2e-6)


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("target", TARGETS)
def test_a_whole_prompt_beside_sinks_equals_transformers(target: Target, window: int) -> None:
    whole_prompt(target, window)


@pytest.mark.parametrize("window", [0, 4])
def test_a_fused_whole_prompt_with_a_slot_for_the_sink_equals_transformers(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt_attention, "MEASURED_SHAPES", EVERY_SHAPE)
    whole_prompt("tensorrt", window)
