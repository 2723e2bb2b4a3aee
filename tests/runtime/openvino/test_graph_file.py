"""A graph without its functions gives what it gave with them."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from snapexport.runtime.openvino.graph_file import inline, read_model
from tests.oracle.cases import Case, build_of


def without_functions(data: bytes) -> bytes:
    model = read_model(data)
    inline(model)
    found: bytes = model.SerializeToString()
    return found


def test_inlined_functions_give_the_same_outputs() -> None:
    build = build_of(Case(target="portable"))
    data = build.graph("compress").read_bytes()
    found = without_functions(data)
    model = onnx.load_from_string(found)
    onnx.checker.check_model(model)
    assert onnx.load_from_string(data).functions and not model.functions
    rng = np.random.default_rng(0)
    feed = {
        spec.name: rng.standard_normal(spec.shape).astype(spec.dtype)
        for spec in build.manifest.graphs["compress"].inputs
    }
    feed["prompt_length"] = np.array([90])
    whole, without = (ort.InferenceSession(one).run(None, feed) for one in (data, found))
    for expected, got in zip(whole, without, strict=True):
        assert np.array_equal(got, expected)


def test_attributes_have_defaults_and_inner_names_are_their_own() -> None:
    """The function is called twice, once with its default, and has a name of the caller's."""
    text = """
<ir_version: 10, opset_import: ["": 24, "own": 1]>
main (float[2] x) => (float[2] y) {
  inner = own.Scaled (x)
  y = own.Scaled <by = 3.0> (inner)
}
<domain: "own", opset_import: ["": 24]>
Scaled <by: float = 2.0> (given) => (result) {
  inner = Constant <value_float: float = @by> ()
  result = Mul (given, inner)
}"""
    model = onnx.parser.parse_model(text)
    found = without_functions(model.SerializeToString())
    (y,) = ort.InferenceSession(found).run(None, {"x": np.array([1, 5], np.float32)})
    assert y.tolist() == [6, 30]


@pytest.mark.parametrize("data", [b"", b"\x3a", b"\x3a\x05ab", b"\x08\xff", b"\x0d\x00", b"\x7b"])
def test_what_is_not_a_model_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_model(data)
