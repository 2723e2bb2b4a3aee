"""A graph without its functions gives what it gave with them."""

import numpy as np
import onnx
import onnxruntime as ort

from snapexport.files.protobuf import Message
from snapexport.runtime.openvino.inlining import inlined
from tests.oracle.cases import Case, build_of


def test_inlined_functions_give_the_same_outputs() -> None:
    build = build_of(Case(target="portable"))
    data = build.graph("compress").read_bytes()
    found = inlined(Message.read(data)).write()
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
    found = inlined(Message.read(model.SerializeToString())).write()
    (y,) = ort.InferenceSession(found).run(None, {"x": np.array([1, 5], np.float32)})
    assert y.tolist() == [6, 30]
