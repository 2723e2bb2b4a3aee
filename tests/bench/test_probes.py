"""The probes do what their amounts say."""

import numpy as np
import onnx

from snapexport.bench import machine
from snapexport.bench.probes import MATMUL, Bandwidth, MatMul

TEXT = """
<ir_version: 8, opset_import: ["": 21]>
g (float[M,K] a, float[K,N] b) => (float[M,N] c) { c = MatMul(a, b) }
"""


def test_the_product_is_what_its_text_says() -> None:
    written = onnx.load_model_from_string(MATMUL)
    parsed = onnx.parser.parse_model(TEXT)
    assert written.graph == parsed.graph
    assert list(written.opset_import) == list(parsed.opset_import)


def test_a_product_of_rows_is_calculated() -> None:
    probe = MatMul(threads=1, rows=8)
    assert probe.amount == 2 * 8**3
    (product,) = probe._session.run(None, probe._feeds)
    np.testing.assert_allclose(product, probe._feeds["a"] @ probe._feeds["b"], rtol=1e-5)
    probe.run()


def test_the_slices_of_a_read_are_all_of_it() -> None:
    probe = Bandwidth(threads=3, nbytes=8 * 100)
    assert probe.amount == 800 == sum(part.nbytes for part in probe._slices)
    assert len(probe._slices) == 3
    probe.run()


def test_a_machine_has_a_name_and_versions() -> None:
    told = machine.described()
    assert told["cores"] >= 1 and told["memory_bytes"] > 1 << 20
    assert told["processor"] and told["versions"]["onnxruntime"]
