"""Probes do the work that they count, and the machine's description."""

import sys
from pathlib import Path

import onnx
import pytest

from snapexport.measure.bench import machine
from snapexport.measure.bench.devices import MATMUL, bandwidth, device_copy, matmul
from snapexport.runtime.ort.devices import HostMemory
from tests.fakes.cuda import FakeCuda

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
    """A square product, every byte read once, and every byte read and written."""
    probes = matmul(1, rows=8), bandwidth(3, nbytes=800), device_copy(HostMemory(), nbytes=64)
    assert [one.labels["amount"] for one in probes] == [2 * 8**3, 800, 128]
    assert [one.labels["probe"] for one in probes] == ["matmul", "bandwidth", "bandwidth"]
    assert all(one.timed() > 0 for one in probes)


def test_a_machine_is_described_by_processor_memory_and_versions() -> None:
    description = machine.described()
    assert description["cores"] >= 1 and description["memory_bytes"] > 1 << 20
    assert description["processor"] and description["versions"]["onnxruntime"]


def test_a_gpu_is_described_by_name_driver_and_cuda_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda = FakeCuda()
    cuda.cudaDriverGetVersion = lambda: (0, 13000)
    cuda.cudaRuntimeGetVersion = lambda: (0, 13040)
    monkeypatch.setattr("snapexport.runtime.ort.cuda.require_cuda_provider", lambda: None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
    monkeypatch.setattr(machine, "_DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text("NVRM version: 580.65.06\nGCC version: 12\n")
    assert machine.gpu() == {
        "name": "NVIDIA Fake",
        "compute_capability": "9.0",
        "driver": "NVRM version: 580.65.06",
        "driver_cuda": "13.0",
        "runtime_cuda": "13.4",
    }
