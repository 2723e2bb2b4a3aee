"""Targets without functions: a graph gives what it gave with them, in standard operators."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from snapexport.contract.targets import Target
from snapexport.graphs.targets.inlined import inline_functions
from tests.oracle.cases import Case, build_of
from tests.voting import PLAIN, REPEAT

VOTE = """
<ir_version: 10, opset_import: ["": 24, "own": 1]>
main (float[8] votes) => (int64[3] kept, float[2] least) {
  kept = own.Kept <K = [3]> (votes)
  two = Constant <value_ints = [2]> ()
  least, unread = TopK <axis = -1, largest = 0> (votes, two)
}
<domain: "own", opset_import: ["": 24]>
Kept <K> (votes) => (ascending) {
  k = Constant <value_ints: ints = @K> ()
  best, chosen = TopK <axis = -1, largest = 1> (votes, k)
  ascending, order = TopK <axis = -1, largest = 0, sorted = 1> (chosen, k)
}"""


def test_bodies_take_the_place_of_calls_and_only_the_order_of_what_is_kept_is_left_open() -> None:
    model = onnx.parser.parse_model(VOTE)
    votes = {"votes": np.array([1, 5, 5, 0, 7, 5, 5, 2], np.float32)}
    expected = ort.InferenceSession(model.SerializeToString()).run(None, votes)
    inline_functions(model)
    onnx.checker.check_model(model, full_check=True)
    assert not model.functions and {one.domain for one in model.opset_import} == {""}
    sorts = [node for node in model.graph.node if node.op_type == "TopK"]
    orders = [[a.i for a in node.attribute if a.name == "sorted"] for node in sorts]
    assert sorted(orders) == [[], [0], [1]]
    got = ort.InferenceSession(model.SerializeToString()).run(None, votes)
    assert [one.tolist() for one in got] == [one.tolist() for one in expected]
    assert got[0].tolist() == [1, 2, 4]  # of equal votes the first ones


@pytest.mark.parametrize("target", ["portable", "openvino"])
@pytest.mark.parametrize("votes", [PLAIN, REPEAT])
def test_no_function_is_left_in_a_build(target: Target, votes: Case) -> None:
    made = build_of(replace(votes, target=target))
    for name in made.manifest.graphs:
        model = onnx.load(made.graph(name), load_external_data=False)
        assert not model.functions
        assert {node.domain for node in model.graph.node} <= {"", "com.microsoft"}
        read = {name for node in model.graph.node for name in node.input}
        read |= {value.name for value in model.graph.output}
        unread = [node.name for node in model.graph.node if not read & {*node.output}]
        assert not unread, "ONNX Runtime prints a warning for each such constant"
