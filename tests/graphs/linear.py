"""Graphs of linear attention and convolutions with a state, and the recurrence in float64."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort
from numpy.typing import NDArray

from snapexport.contract.targets import Target
from snapexport.graphs.markers import CACHE_DOMAIN, LINEAR_ATTENTION
from snapexport.graphs.passes.base import node
from snapexport.graphs.targets import TARGET_PASSES
from snapexport.methods.states.surgery import causal_conv
from tests.graphs.bodies import exported

Array = NDArray[Any]
NAMES = ("query", "key", "value", "decay", "beta", "past_state")
SCALE = 0.3


@dataclass(frozen=True)
class Sizes:
    """As in `graphs/markers.py`. by_channel: a decay for each row of a state."""

    batch: int = 1
    tokens: int = 1
    groups: int = 2
    heads: int = 4
    key_dim: int = 8
    value_dim: int = 12
    by_channel: bool = False
    beta: bool = True

    def random(self, seed: int, decay: float = 1.0) -> dict[str, Array]:
        """Inputs of a marker. decay: factor of softplus(normal). Keys have norm 1 with beta."""
        rng = np.random.default_rng(seed)
        rows = (self.batch, self.tokens)
        decays = (*rows, self.heads, *([self.key_dim] if self.by_channel else []))
        shapes = {
            "query": (*rows, self.groups, self.key_dim),
            "key": (*rows, self.groups, self.key_dim),
            "value": (*rows, self.heads, self.value_dim),
            "decay": decays,
            "past_state": (self.batch, self.heads, self.key_dim, self.value_dim),
        }
        found = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        found["decay"] = -decay * np.log1p(np.exp(found["decay"]))
        if self.beta:
            found["key"] /= np.linalg.norm(found["key"], axis=-1, keepdims=True)
            found["beta"] = rng.uniform(0, 1, (*rows, self.heads)).astype(np.float32)
        return {name: found[name].astype(np.float32) for name in NAMES if name in found}


def recurrence(inputs: dict[str, Array]) -> dict[str, Array]:
    """What a marker gives."""
    exact = {name: one.astype(np.float64) for name, one in inputs.items()}
    value, state = exact["value"], exact["past_state"]
    each = value.shape[2] // exact["key"].shape[2]
    query, key = (np.repeat(exact[name], each, 2) for name in ("query", "key"))
    factor = np.exp(exact["decay"]).reshape(*value.shape[:3], -1, 1)
    output = np.zeros_like(value)
    for at in range(value.shape[1]):
        state = state * factor[:, at]
        update = value[:, at]
        if "beta" in exact:
            error = update - np.einsum("bhkv,bhk->bhv", state, key[:, at])
            update = exact["beta"][:, at, :, None] * error
        state = state + key[:, at, :, :, None] * update[:, :, None]
        output[:, at] = SCALE * np.einsum("bhkv,bhk->bhv", state, query[:, at])
    return {"output": output, "present_state": state}


def graph_of(inputs: dict[str, Array], target: Target) -> gs.Graph:
    """A graph of one marker, as the target's passes leave it."""
    tensors = {name: gs.Variable(name, one.dtype, one.shape) for name, one in inputs.items()}
    past, value = tensors["past_state"], tensors["value"]
    output = gs.Variable("output", np.float32, value.shape)
    present = gs.Variable("present_state", np.float32, past.shape)
    graph = gs.Graph(inputs=list(tensors.values()), outputs=[output, present], opset=24)
    given = [tensors.get(name, gs.Variable.empty()) for name in NAMES]
    attributes = {"layer": 0, "scale": SCALE}
    node(graph, LINEAR_ATTENTION, given, [output, present], domain=CACHE_DOMAIN, **attributes)
    for one in TARGET_PASSES[target]:
        one.apply(graph)
    return graph


def conv_graph(inputs: dict[str, Array]) -> gs.Graph:
    """A graph of one convolution: of x, weight, past, and what there is of bias and valid."""
    tensors = {name: gs.Variable(name, one.dtype, one.shape) for name, one in inputs.items()}
    present = gs.Variable("present", inputs["past"].dtype, inputs["past"].shape)
    graph = gs.Graph(inputs=list(tensors.values()), opset=24)
    states = [tensors["x"], tensors["weight"], tensors.get("bias"), tensors["past"]]
    graph.outputs = [causal_conv(graph, *states, tensors.get("valid"), present), present]
    return graph


def run_in_place(graph: gs.Graph, inputs: dict[str, Array], past: str) -> dict[str, Array]:
    """Outputs by name, of which the last one, the present state, takes the past one's buffer."""
    output, present = (tensor.name for tensor in graph.outputs)
    model = exported(graph).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    values = {name: ort.OrtValue.ortvalue_from_numpy(one.copy()) for name, one in inputs.items()}
    binding = session.io_binding()
    for name, one in values.items():
        binding.bind_ortvalue_input(name, one)
    binding.bind_output(output)
    binding.bind_ortvalue_output(present, values[past])
    session.run_with_iobinding(binding)
    return {output: binding.copy_outputs_to_cpu()[0], present: values[past].numpy().copy()}
