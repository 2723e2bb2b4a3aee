"""What is probed and said of a GPU."""

import sys
from pathlib import Path

import pytest

from snapexport.runtime.engine.backend import HostMemory
from tests.fakes.cuda import FakeCuda
from tools.studies.speed import device


def test_a_copy_counts_every_byte_read_and_written() -> None:
    copy = device.device_copy(HostMemory(), nbytes=64)
    assert copy.labels == {"probe": "bandwidth", "amount": 128}
    assert copy.timed() > 0


def test_a_gpu_is_described_by_name_driver_and_cuda_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda = FakeCuda()
    cuda.cudaDriverGetVersion = lambda: (0, 13000)
    cuda.cudaRuntimeGetVersion = lambda: (0, 13040)
    monkeypatch.setattr("snapexport.runtime.ort.devices.require_cuda_provider", lambda: None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
    monkeypatch.setattr(device, "_DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text("NVRM version: 580.65.06\nGCC version: 12\n")
    assert device.gpu() == {
        "name": "NVIDIA Fake",
        "compute_capability": "9.0",
        "driver": "NVRM version: 580.65.06",
        "driver_cuda": "13.0",
        "runtime_cuda": "13.4",
    }
