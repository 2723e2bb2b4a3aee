"""Packed weights: the same tokens, no second copy in memory, and what doesn't fit is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from snapexport.builder.verify import verify
from snapexport.cli.app import main
from snapexport.contract import engines
from snapexport.contract.build_directory import Build
from snapexport.contract.engines import FOLDER, RECORD, WEIGHTS_FILE, PackedGraphs
from snapexport.errors import UserError
from snapexport.runtime.requests.llm import LLM
from tests.builds import build

PROMPT = np.random.default_rng(0).integers(3, 250, 20).tolist()


@pytest.fixture(scope="module")
def packed_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "build"
    build(checkpoint, out, L_max=64, kv_budget=24, prefill_chunk=32, batch=2, weights="int8")
    assert main(["engine", str(out)]) == 0
    return out


@pytest.fixture
def copied(packed_build: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed_build, tmp_path / "b"))


def logits(directory: Path) -> np.ndarray:
    return LLM(directory).executor.prefill_prompt(0, PROMPT).logits.copy()


def test_packed_graphs_give_the_same_logits(copied: Path) -> None:
    with_packed = logits(copied)
    shutil.rmtree(copied / "engines")
    np.testing.assert_array_equal(logits(copied), with_packed)


def test_what_graphs_have_alike_is_written_once(packed_build: Path) -> None:
    """Prefill and two sizes of decode: one copy as it was, and one rearranged."""
    record = PackedGraphs.of(packed_build)
    assert record and set(record.graphs) == {"prefill", "decode", "decode.1"}
    weights = sum(file.stat().st_size for file in (packed_build / "weights").iterdir())
    assert record.weights.size < 3.5 * weights


def test_another_processor_or_version_takes_the_graphs_as_they_are(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, graphs = PackedGraphs.of(copied), Build.open(copied).manifest.graphs
    assert record
    source, version = graphs["decode"].sha256, record.version
    assert record.file(copied, "decode", source, version)
    assert record.file(copied, "decode", "another graph", version) is None
    assert record.file(copied, "decode", source, "0.0.1") is None
    assert record.file(copied, "compress", graphs["compress"].sha256, version) is None
    monkeypatch.setattr(engines, "processor", lambda: "another")
    assert record.file(copied, "decode", source, version) is None


@pytest.mark.parametrize("name", [WEIGHTS_FILE, "prefill.onnx", RECORD])
def test_broken_files_are_refused(copied: Path, name: str) -> None:
    file = copied / "engines" / FOLDER / name
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(UserError, match=r"not the file that was packed|is not valid"):
        logits(copied)


def test_verification_reads_every_packed_byte(copied: Path) -> None:
    build = Build.open(copied)
    assert not [name for name in verify(build).other_files if "onnxruntime" in name]
    file = copied / "engines" / "onnxruntime" / "weights.bin"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(UserError, match=r"weights\.bin is not the file that was packed"):
        verify(build)


def test_packing_again_needs_overwrite(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", str(copied)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["engine", str(copied), "--overwrite", "--graphs", "decode", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["graphs"]) == ["decode"]


@pytest.mark.parametrize("flags", [["--refit"], ["--estimate"], ["--compute-capability", "8.9"]])
def test_flags_of_tensorrt_are_refused(
    copied: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engine", str(copied), *flags]) == 2
    assert "TensorRT" in capsys.readouterr().err
