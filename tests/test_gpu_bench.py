"""The GPU bench's dry run, complete to its last line, and that it goes on where it was."""

import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport.bench.weights import read_header
from snapexport.runtime.ort.devices import Cpu
from tests.runtime.fake_cuda import FakeCuda
from tools.gpu_bench import __main__ as gpu_bench
from tools.gpu_bench import builds, gpu
from tools.gpu_bench.checkpoint import tensors, write_checkpoint
from tools.gpu_bench.measure import Bench
from tools.gpu_bench.results import Results
from tools.gpu_bench.setting import LARGE, SMALL, TINY
from tools.gpu_bench.stub import __main__ as stub
from tools.gpu_bench.table import tables


def run(capsys: pytest.CaptureFixture[str], out: Path, *flags: str) -> tuple[str, Any]:
    assert gpu_bench.main(["--dry-run", "--out", str(out), *flags]) == 0
    *shown, last = capsys.readouterr().out.strip().splitlines()
    return "\n".join(shown), json.loads(last)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint and builds, in the stages' order however they are asked for."""
    folder = tmp_path_factory.mktemp("gpu_bench")
    assert (
        gpu_bench.main(["--dry-run", "--out", str(folder), "--stage", "build", "checkpoint"]) == 0
    )
    return folder


def test_the_dry_run_measures_everything(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown, report = run(capsys, out)
    rows = Counter((row["cache"], row["context"]) for row in report["context"])
    assert rows == {(cache, n): 1 for cache in ("snapstream", "full") for n in SMALL.contexts}
    slots = {row["cache"]: row["slots"] for row in report["equal-memory"]}
    assert slots["snapstream"] == 4 * slots["full"] == SMALL.slots(SMALL.kv_budget)
    for row in report["context"] + report["equal-memory"]:
        assert row["of_floor"] == pytest.approx(
            row["floor_milliseconds"] / row["milliseconds"], 0.01
        )
        assert row["tokens_per_second"] == pytest.approx(
            1e3 * row["slots"] / row["milliseconds"], 0.01
        )
    assert all(0 < row["share"] < 1 for row in report["overhead"])
    assert "nothing of a GPU" in report["dry_run"]
    for title in ("(a) decode by context", "(b) the same bytes", "(c) what compression adds"):
        assert title in shown
    assert report["operators"]["main"]["decode"]["FusedMatMul"] == 15


def test_what_was_measured_is_kept(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second call measures what is missing alone."""
    _, before = run(capsys, out)
    file = out / "results.json"
    kept = json.loads(file.read_text())
    lost = kept["context"].pop(1)
    file.write_text(json.dumps(kept))
    _, after = run(capsys, out, "--stage", "context", "overhead")
    *same, again = after["context"]
    assert same == kept["context"] and after["overhead"] == before["overhead"]
    assert (again["cache"], again["context"]) == (lost["cache"], lost["context"])


def test_other_settings_are_not_mixed(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_bench.main(["--dry-run", "--out", str(out), "--cache-budget", "65536"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "error: --out holds what was made with other settings\n\nhint: choose another --out\n"
    )


@pytest.mark.parametrize("budget", [0, -1, 32767])
def test_a_budget_without_a_slot_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], budget: int
) -> None:
    assert gpu_bench.main(["--dry-run", "--out", str(tmp_path), f"--cache-budget={budget}"]) == 2
    assert capsys.readouterr().err == (
        f"error: --cache-budget {budget} does not hold one slot of SnapStream\n\n"
        "hint: give 32768 bytes or more\n"
    )


def test_a_full_cache_above_the_budget_is_left_out_and_said(tmp_path: Path) -> None:
    setting = replace(SMALL, cache_budget=64 << 10)
    assert list(builds.wanted(setting)) == [builds.MAIN, builds.SNAPSTREAM]
    results = Results(tmp_path / "results.json")
    row = {"slots": 2} | dict.fromkeys(
        ("milliseconds", "floor_milliseconds", "of_floor", "tokens_per_second"), 1
    )
    results.add("equal-memory", {"cache": "snapstream", "context": 256} | row)
    Bench(setting, tmp_path, results, "onnxruntime", Cpu, print).equal_memory()
    *_, said = tables(results)
    assert said == "full cache of 256 left out: one slot takes 131,072 bytes of 65,536"


def test_a_build_from_elsewhere_gets_its_weights(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Graphs travel without 16 GB of weights, and the checkpoint is made where they arrive."""
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    (tmp_path / "results.json").unlink()
    for weights in tmp_path.rglob("*.safetensors"):
        weights.unlink()
    _, report = run(capsys, tmp_path, "--stage", "context", "build", "checkpoint")
    assert len(report["context"]) == 2 * len(SMALL.contexts)


def test_what_onnxruntime_raises_in_a_run_is_told(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a graph finds no memory left on the GPU."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")

    def fail(_: Bench) -> None:
        raise state.RuntimeException("Failed to allocate memory\nmore")

    monkeypatch.setattr(Bench, "context", fail)
    assert gpu_bench.main(["--dry-run", "--out", str(out), "--stage", "context"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ONNX Runtime: Failed to allocate memory\n\nhint: ")
    assert "--cache-budget" in error and "processor" in Results(out / "results.json").get("machine")


def test_rows_are_of_one_gpu(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "described", lambda: {"name": "NVIDIA H200"})
    results = Results(tmp_path / "results.json")
    gpu_bench._describe(results, dry_run=False)
    assert results.get("gpu") == {"name": "NVIDIA H200"}
    monkeypatch.setattr(gpu, "described", lambda: {"name": "NVIDIA B200"})
    with pytest.raises(ValueError, match="rows of another GPU"):
        gpu_bench._describe(results, dry_run=False)


def test_a_gpu_is_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the fake's name, a driver's file, and CUDA's own numbers."""
    cuda = FakeCuda()
    cuda.cudaDriverGetVersion = lambda: (0, 13000)
    cuda.cudaRuntimeGetVersion = lambda: (0, 13040)
    monkeypatch.setattr(gpu, "require_cuda_provider", lambda: None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
    monkeypatch.setattr(gpu, "_DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text("NVRM version: 580.65.06\nGCC version: 12\n")
    assert gpu.described() == {
        "name": "NVIDIA Fake",
        "compute_capability": "9.0",
        "driver": "NVRM version: 580.65.06",
        "driver_cuda": "13.0",
        "runtime_cuda": "13.4",
    }


def test_without_a_gpu_the_error_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ort = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this is onnxruntime-gpu")
    assert gpu_bench.main(["--out", str(tmp_path), "--stage", "context"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: this onnxruntime ") and "\n\nhint: pip " in error


def test_the_stub_needs_onnxruntime_gpu(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if stub.library().is_file():
        pytest.skip("this is onnxruntime-gpu")
    assert stub.main([str(out / "builds" / builds.MAIN)]) == 2
    assert capsys.readouterr().err.startswith(
        "error: onnxruntime-gpu is not installed here\n\nhint:"
    )


def test_the_stub_has_each_function_once() -> None:
    """What stands in cudart.c is not written again, and the rest answers that all went well."""
    text = stub.source(["cudaMalloc", "cudaStreamWaitEvent", "cublasCreate_v2"], stub.CUDART)
    assert text.splitlines() == [
        "long cudaStreamWaitEvent() { return 0; }",
        "long cublasCreate_v2(void **it) { *it = (void *)16; return 0; }",
        "int _;",
    ]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_checkpoint_is_as_its_header_says(tmp_path: Path, dtype: Any) -> None:
    write_checkpoint(tmp_path, TINY, dtype)
    file = tmp_path / "model.safetensors"
    found = {tensor.name: tensor.shape for tensor in read_header(file)}
    assert found == dict(tensors(TINY))
    numbers = np.fromfile(file, np.uint16)[-TINY["vocab_size"] * TINY["hidden_size"] :]
    values = numbers.view(np.float16) if dtype == "fp16" else as_bf16(numbers)
    assert np.isfinite(values).all() and values.std() == pytest.approx(128**-0.5, rel=0.02)


def as_bf16(numbers: Any) -> Any:
    return (numbers.astype(np.uint32) << 16).view(np.float32)


def test_the_large_setting_is_llama_3_1_8b() -> None:
    """Its parameters as published (8.03e9), and how many slots the default budget holds."""
    elements = sum(int(np.prod(shape)) for _, shape in tensors(LARGE.shape))
    assert elements == 8_030_261_248
    assert LARGE.position_bytes == 128 << 10
    assert [LARGE.slots(n) for n in LARGE.equal] == [16, 8, 4, 2]
    assert LARGE.slots(LARGE.kv_budget) == 32
