"""Probes do the work that they count, and the machine's description."""

import onnx

from snapexport.measure.bench.probes import MATMUL, bandwidth, matmul
from snapexport.measure.bench.results import machine_facts

TEXT = """
<ir_version: 8, opset_import: ["": 21]>
g (float[M,K] a, float[K,N] b) => (float[M,N] c) { c = MatMul(a, b) }
"""


def test_the_probed_graph_is_a_single_matmul() -> None:
    written = onnx.load_model_from_string(MATMUL)
    parsed = onnx.parser.parse_model(TEXT)
    assert written.graph == parsed.graph
    assert list(written.opset_import) == list(parsed.opset_import)


def test_each_probe_counts_the_work_of_a_run() -> None:
    """A square product, and every byte read once."""
    probes = matmul(1, rows=8), bandwidth(3, nbytes=800)
    assert [one.labels["amount"] for one in probes] == [2 * 8**3, 800]
    assert [one.labels["probe"] for one in probes] == ["matmul", "bandwidth"]
    assert all(one.timed() > 0 for one in probes)


def test_a_machine_is_described_by_processor_memory_and_versions() -> None:
    description = machine_facts()
    assert description["cores"] >= 1 and description["memory_bytes"] > 1 << 20
    assert description["processor"] and description["versions"]["onnxruntime"]
