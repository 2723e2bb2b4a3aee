"""`python -m tools.studies.gpu_decode`, without a GPU."""

import json
from pathlib import Path

import pytest

from snapexport.contract.targets import TARGETS
from tools.studies import gpu_decode


@pytest.mark.slow
def test_a_dry_run_times_steps_and_compares_backends(tmp_path: Path) -> None:
    record = TARGETS["onnxruntime"]
    gpu_decode.main(["--dry-run", "--work", str(tmp_path), "--out", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["dry_run"] and found["bytes_per_second"] > 0
    for name in ("all layers, fused", "a quarter of the layers, products apart"):
        assert set(found[name]) == {"1", "4"}
        assert all(row["ms"] > 0 and row["roofline_ms"] > 0 for row in found[name].values())
    assert found["gpu_and_cpu"].keys() == gpu_decode.COMPARED.keys()
    same = {"of_deviation": 0.0, "same_token": 1.0}
    assert all(compared == same for compared in found["gpu_and_cpu"].values())
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    assert TARGETS["onnxruntime"] is record
