"""A kind of graph that the package does not know, handed in as the built-in ones are: as a row."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kind import GraphKind
from snapexport.contract.graph_specs import GraphFacts, Tensors
from snapexport.errors import UserError
from snapexport.graphs import method, surgery
from snapexport.graphs.method import GraphSurgery, MethodSurgery, Recipe, Size
from snapexport.graphs.method import surgeries as known
from snapexport.graphs.passes.base import Pass, node
from snapexport.methods import table
from snapexport.methods.method import Method
from snapexport.runtime.engine.bound_graph import BoundGraph, allocate
from snapexport.runtime.engine.graph_set import GraphSet, Role
from snapexport.runtime.ort.backend import OnnxRuntimeBackend
from tests.builds import build

LAST = "last_position"
OPTIONS = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 24, "batch": 2}


class LastPosition:
    """Adds the output `last_position`, the prompt's length less one."""

    def apply(self, graph: gs.Graph) -> None:
        one = gs.Constant("one", np.array([1], np.int64))
        graph.outputs = [gs.Variable(LAST, np.int64, (1,))]
        node(graph, "Sub", [graph.inputs[0], one], graph.outputs)


def start(prefill: gs.Graph, recipe: Recipe) -> gs.Graph:
    length = gs.Variable(names.PROMPT_LENGTH, np.int64, (1,))
    return gs.Graph(name="last", opset=prefill.opset, inputs=[length])


def passes(recipe: Recipe, size: Size) -> list[Pass]:
    return [LastPosition()]


class ToySurgery(MethodSurgery):
    kinds: ClassVar = {"last": GraphSurgery(passes, start, is_traced=False)}


SURGERY = ToySurgery()


def specs(facts: GraphFacts) -> Tensors:
    return {names.PROMPT_LENGTH: ("int64", (1,))}, {LAST: ("int64", (1,))}


TOY = GraphKind(name="last", specs=specs, traced_as="prefill", has_weights=False)
LOADED = replace(TOY, loaded_if=lambda run: run.takes_prompts)


@contextmanager
def toy_kind(kind: GraphKind = TOY) -> Iterator[None]:
    toy = Method(name="toy", home="", is_on=lambda geometry, options: True, kinds=(kind,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "METHODS", (*table.METHODS, toy))
        patch.setattr(method, "surgeries", lambda recipe: [*known(recipe), SURGERY])
        patch.setattr(surgery, "surgeries", method.surgeries)
        yield


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_a_kind_of_graph_is_a_row_in_two_tables(
    target: str, checkpoint: Path, tmp_path: Path
) -> None:
    with toy_kind():
        build(checkpoint, tmp_path / "b", target=target, baseline=True, **OPTIONS)
        made = Build.open(tmp_path / "b")
    assert "last" in made.manifest.graphs and "baseline-last" not in made.manifest.graphs
    session = ort.InferenceSession(made.graph("last"), providers=["CPUExecutionProvider"])
    assert session.run([LAST], {names.PROMPT_LENGTH: np.array([37])})[0].tolist() == [36]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_kind_of_graph_is_loaded_by_executors_for_which_its_row_says_so(
    role: Role, checkpoint: Path, tmp_path: Path
) -> None:
    with toy_kind(LOADED):
        made = build(checkpoint, tmp_path / "b", **OPTIONS)
        graphs = GraphSet.of(made, baseline=False, role=role)
        assert ("last" in graphs.names) == (role == "prefill")
        backend = OnnxRuntimeBackend(made, graphs, threads=1)
    entry = made.manifest.graphs["last"]
    graph = BoundGraph(backend, "last", entry, allocate(backend.memory, entry, {}))
    graph.arrays[names.PROMPT_LENGTH][:] = 37
    graph.run()
    assert graph.arrays[LAST].tolist() == [36]


def test_a_build_with_an_unknown_kind_of_graph_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with toy_kind():
        build(checkpoint, tmp_path / "b", **OPTIONS)
    with pytest.raises(UserError, match="names no graph"):
        Build.open(tmp_path / "b")
