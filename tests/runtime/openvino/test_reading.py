"""What OpenVINO is given of a build's graphs, which times show and outputs don't."""

from typing import Any

import pytest

from snapexport.contract import names
from snapexport.contract.manifest import GraphName
from snapexport.errors import first_line
from tests.oracle.cases import Case, build_of

openvino = pytest.importorskip("openvino")

from snapexport.runtime.engine.graph_file import MappedWeights  # noqa: E402
from snapexport.runtime.openvino.reading import Read, read_graph  # noqa: E402

CASE = Case(target="portable", prefill_chunk=24)


def read(graph: GraphName, *, dynamic: bool = True) -> tuple[Any, Read]:
    build = build_of(CASE)
    entry = build.manifest.graphs[graph]
    return read_graph(build.graph(graph), entry, MappedWeights(), dynamic=dynamic)


def test_a_chunk_reads_of_a_cache_what_precedes_it() -> None:
    model, found = read("prefill")
    inputs = build_of(CASE).manifest.graphs["prefill"].inputs
    caches = {one.name: one.shape for one in inputs if names.is_past(one.name)}
    assert found.prefixes.keys() == caches.keys()
    assert not found.inputs & caches.keys()
    for name, (_, heads, slots, width) in caches.items():
        numbers, start = found.prefixes[name]
        assert start == names.PAST_LENGTH
        shapes = [model.inputs[number].get_partial_shape() for number in numbers]
        assert shapes == heads * [openvino.PartialShape([openvino.Dimension(0, slots), width])]


def test_a_device_of_fixed_shapes_reads_whole_caches() -> None:
    _, found = read("prefill", dynamic=False)
    assert not found.prefixes
    assert any(map(names.is_past, found.inputs))


def test_a_vote_turns_no_products() -> None:
    model, _ = read("compress")
    kinds = [node.get_type_name() for node in model.get_ordered_ops()]
    assert "MatMul" in kinds
    assert "Transpose" not in kinds


def test_the_first_line_of_an_error_says_more_than_its_place() -> None:
    with pytest.raises(RuntimeError, match=r"^Exception from \S+:\d+:\n") as raised:
        openvino.Core().compile_model(openvino.Model([], []), "ABACUS")
    assert first_line(raised.value).startswith('Device with "ABACUS" name is not registered')
