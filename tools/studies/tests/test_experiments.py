"""`python -m tools.studies.speed`: experiments by name, at tiny sizes, on the CPU."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapexport.errors import UserError
from snapexport.files import safetensors
from snapexport.measure.bench import turns
from snapexport.measure.bench.turns import Case, Group
from tools.studies.speed import checkpoints
from tools.studies.speed.__main__ import main
from tools.studies.speed.device import Device
from tools.studies.speed.experiments import (
    context,
    equal_memory,
    overhead,
    peers,
    sparse_prefill,
)
from tools.studies.speed.record import Results
from tools.studies.speed.setup import Setup

DRY_RUN = ["--device", "cuda", "--dry-run", "--threads", "1", "--rounds", "1"]


@pytest.fixture(scope="module")
def work_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose builds all tests of this file share."""
    return tmp_path_factory.mktemp("work")


def run(work_directory: Path, capsys: pytest.CaptureFixture[str], *given: str) -> tuple[str, Any]:
    """All printed text, and its last line as JSON."""
    assert main([*given, "--work", str(work_directory)]) == 0
    *shown, last = capsys.readouterr().out.strip().splitlines()
    return "\n".join(shown), json.loads(last)


def test_an_experiment_measures_draws_and_prints(
    work_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--quick", "--rounds", "1", "--threads", "1", "--set", "steps=2"]
    shown, report = run(work_directory, capsys, "context", *flags)
    assert report["complete"]
    assert report["command"].endswith("context --quick --rounds 1 --set steps=2")
    decode = report["sections"]["decode"]
    cells = {(row["context"], row["kv_budget"]) for row in decode}
    assert cells == {(at, b) for at in (512, 1024, 2048) for b in (None, 128, 256)}
    assert all(row["seconds"]["samples"] == 2 and row["ratio"] for row in decode)
    assert "| 2,048 |" in shown
    results = work_directory / "quick" / "results" / "cpu"
    assert json.loads((results / "context.json").read_text()) == report
    assert str(work_directory) not in (results / "context.json").read_text()
    assert (results / "context.png").read_bytes().startswith(b"\x89PNG")


def test_resumed_cuda_dry_run_measures_only_the_missing_row(
    work_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["context", *DRY_RUN, "--prepare", "--work", str(work_directory)]) == 0
    out = work_directory / "quick" / "results" / "cuda"
    assert not out.exists()
    _, first = run(work_directory, capsys, "context", *DRY_RUN)
    assert first["device"] == "cuda" and "nothing of a GPU" in first["notes"][0]
    (operators, *_) = first["sections"]["operators"]
    assert operators["on_cpu"]["decode"]["FusedMatMul"] > 0 and not operators["captured"]
    lost = first["sections"]["decode"].pop(1)
    (out / "context.json").write_text(json.dumps(first))
    _, again = run(work_directory, capsys, "context", *DRY_RUN, "--resume")
    *kept, last = again["sections"]["decode"]
    assert kept == first["sections"]["decode"]
    assert (last["context"], last["kv_budget"]) == (lost["context"], lost["kv_budget"])
    assert (
        main(["context", *DRY_RUN, "--resume", "--set", "steps=9", "--work", str(work_directory)])
        == 2
    )
    assert "has rows of other settings" in capsys.readouterr().err


def test_derived_builds_keep_top_tokens_and_restore_missing_weights(
    tmp_path: Path,
) -> None:
    setup = Setup(tmp_path, Device(threads=1))
    shape = checkpoints.SHAPES["small"] | {"vocab_size": 300, "num_hidden_layers": 1}
    model = tmp_path / "checkpoints" / "small"
    checkpoints.write(model, shape, "fp32")
    before = setup.builds(top_tokens=8).get(1024, 16)
    assert before.manifest.weights and before.manifest.graph_options.top_tokens == 8
    shutil.rmtree(before.directory / "weights")
    after = setup.builds(top_tokens=8).get(1024, 16)
    assert all((after.directory / one.file).is_file() for one in after.manifest.weights)


def test_interrupted_experiment_keeps_its_measurements(
    work_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(groups: Sequence[Group], rounds: int) -> Iterator[tuple[Case, float]]:
        yield groups[-1][-1], 0.5
        raise KeyboardInterrupt

    monkeypatch.setattr(turns, "take_turns", cut_short)
    assert (
        main(["context", "--quick", "--work", str(work_directory), "--out", str(tmp_path)]) == 130
    )
    report = json.loads((tmp_path / "context.json").read_text())
    assert not report["complete"]
    assert [row["seconds"]["median"] for row in report["sections"]["decode"]] == [0.5]


REFUSED: dict[str, tuple[list[str], str]] = {
    "0 rounds": (["context", "--rounds", "0"], "--rounds 0 is below 1"),
    "experiment of another device": (
        ["naive", "--device", "cuda", "--dry-run"],
        "naive is not for --device cuda",
    ),
    "dry run on the CPU": (["context", "--dry-run"], "--dry-run is of --device cuda"),
    "unknown option": (["context", "--set", "depth=1"], "--set: context has no option 'depth'"),
    "value that is not JSON": (
        ["context", "--set", "steps=two"],
        "--set steps=two is not NAME=JSON",
    ),
    "unknown setting": (["plan", "--quick", "--set", 'only=["none"]'], "no setting 'none'"),
    "missing page": (["tables", "--write", "none.md"], "none.md is not there"),
    "budget below one batch slot": (
        ["equal_memory", "--device", "cuda", "--dry-run", "--cache-budget", "1"],
        "equal_memory: --cache-budget 1 does not hold one slot of SnapStream",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_experiment_refuses_bad_flags_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    given, message = REFUSED[name]
    assert main([*given, "--work", str(tmp_path), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"error: {message}" in error and "\n\nhint: " in error
    assert not list(tmp_path.glob("*.json"))


def test_an_unknown_experiment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["nothing"])
    assert left.value.code == 2
    assert "nothing" in capsys.readouterr().err


def test_cuda_experiment_without_the_provider_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ort = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this is onnxruntime-gpu")
    assert main(["context", "--device", "cuda", "--work", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: context: this onnxruntime ") and "\n\nhint: pip " in error


def test_onnxruntime_error_in_an_experiment_is_a_user_error() -> None:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")

    class Executor:
        def close(self) -> None: ...

    device: Any = Device(threads=1)
    opened = type(device).opened
    fake: Any = type("Fake", (), {"open": lambda *_: Executor()})()
    with pytest.raises(ValueError, match="ONNX Runtime: Failed to allocate memory"):  # noqa: SIM117
        with opened(fake, None):
            raise state.RuntimeException("Failed to allocate memory\nmore")


def test_equal_memory_leaves_out_and_notes_a_full_cache_above_the_budget(tmp_path: Path) -> None:
    setup = Setup(tmp_path, Device("cuda", dry=True), quick=True)
    options = replace(equal_memory.EQUAL_MEMORY.quick, cache_bytes=1 << 20, prompts=(1024, 4096))
    (note,) = equal_memory.left_out(setup, options)
    assert note == "full cache of 4,096 left out: one slot takes 2,097,152 bytes of 1,048,576"


def test_the_gpu_settings_are_llama_3_1_8b_at_32_gib() -> None:
    """Its parameters as published (8.03e9), and the batch slots that the budget holds."""
    shape = checkpoints.SHAPES["8b"]
    assert sum(int(np.prod(one)) for _, one in checkpoints.tensors(shape)) == 8_030_261_248
    position = 2 * 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]
    options = equal_memory.EQUAL_MEMORY.cuda
    slots = [options.cache_bytes // (position * prompt) for prompt in options.prompts]
    assert slots == [16, 8, 4, 2]
    assert options.cache_bytes // (position * 8192) == 32
    assert context.CONTEXT.cuda.kv_budgets == (8192,)
    assert overhead.OVERHEAD.cuda.kv_budget == 8192


TINY = checkpoints.SHAPES["small"] | {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_random_checkpoint_has_the_tensors_of_its_header(tmp_path: Path, dtype: Any) -> None:
    checkpoints.write(tmp_path / "tiny", TINY, dtype)
    file = tmp_path / "tiny" / "model.safetensors"
    found = {name: span.shape for name, span in safetensors.read_header(file).items()}
    assert found == dict(checkpoints.tensors(TINY))
    bits = np.fromfile(file, np.uint32 if dtype == "fp32" else np.uint16)[-9000:-1000]
    if dtype == "bf16":
        bits = bits.astype(np.uint32) << 16
    values = bits.view(np.float16 if dtype == "fp16" else np.float32)
    values = values[values != 1]  # norms
    assert np.isfinite(values).all() and values.std() == pytest.approx(128**-0.5, rel=0.05)


def test_equal_memory_divides_throughput_by_that_of_the_full_cache() -> None:
    decode = [
        {"context": 16, "cache": "full", "batch": 2, "seconds": {"median": 0.5}},
        {"context": 16, "cache": "1/4", "batch": 8, "seconds": {"median": 0.4}},
    ]
    found = equal_memory.summary({"decode": decode})
    assert [row["tokens_per_second"] for row in found] == [4.0, 20.0]
    assert [row["times_full"] for row in found] == [1.0, 5.0]


def test_compress_share_is_of_measured_or_integrated_prefill() -> None:
    chunks = [
        {"past": past, "chunk": 10, "seconds": {"median": 1 + past / 10}} for past in (0, 10, 20)
    ]
    ran = {"prompt": 20, "seconds": {"median": 4.0}}
    steps = [{"prompt": n, "L_max": 40, "slots": 8, "seconds": {"median": 0.5}} for n in (20, 40)]
    short, long = overhead.summary({"prefill": [ran, *chunks], "compress": steps})
    assert short["prefilled"] and short["share"] == 0.125
    assert short["integrated_off_by"] == pytest.approx(3.5 / 4 - 1)
    # chunks of 1, 2, 3 and 4 s
    assert not long["prefilled"] and long["prefill_seconds"] == pytest.approx(10.5)


def test_peers_are_compared_with_snapstream_of_equal_weight_bits() -> None:
    rows = [("snapexport fp32, SnapStream", 32, 2.0), ("snapexport int4, SnapStream", 4, 1.0)]
    rows += [("other fp32", 32, 3.0), ("other int4", 4, 3.0)]
    decode = [
        {"system": name, "bits": bits, "context": 8, "seconds": {"median": one}}
        for name, bits, one in rows
    ]
    assert [row["times_ours"] for row in peers.summary({"decode": decode})] == [1, 1, 1.5, 3]


def test_equal_tokens_end_at_the_first_that_differs_from_the_references() -> None:
    answers = [
        {"system": peers.REFERENCE, "passage": 0, "tokens": [5, 6, 7]},
        {"system": peers.REFERENCE, "passage": 1, "tokens": [5, 6, 7]},
        {"system": "other", "passage": 0, "tokens": [5, 9, 7]},
        {"system": "other", "passage": 1, "tokens": [5, 6]},
        {"system": "other", "passage": 2, "tokens": [5, 6, 7]},
    ]
    assert peers.equal_tokens(answers) == {peers.REFERENCE: [3, 3], "other": [1, 2]}
    assert peers.equal_tokens(answers[2:]) == {}


def test_peers_refuse_a_text_that_is_missing_or_too_short(tmp_path: Path) -> None:
    setup = Setup(tmp_path, quick=True)
    results = Results("peers", "", None)
    for text, message in ((tmp_path / "no.txt", "is no file"), (tmp_path / "a.txt", "tokens, not")):
        (tmp_path / "a.txt").write_text("a few words")
        with pytest.raises(UserError, match=message):
            peers.run(setup, peers.Options(text=str(text)), results)


def test_integrated_prefill_weighs_short_chunks_as_much_as_long_ones() -> None:
    chunks = [
        {"past": past, "chunk": 100, "seconds": {"median": seconds}}
        for past, seconds in ((0, 1.0), (1000, 11.0), (2000, 31.0))
    ]
    integrate = overhead.integral(chunks)
    assert integrate is not None and abs(integrate(100) - 1.0) < 0.3


def test_a_sparse_prompt_is_integrated_from_both_kinds_of_chunks() -> None:
    def row(budget: int, past: int, seconds: float) -> dict[str, Any]:
        median = {"median": seconds}
        return {"budget": budget, "past": past, "chunk": 16, "seconds": median}

    whole = [row(0, past, 1.0 + past) for past in (0, 240)]
    summary = sparse_prefill.summary({"prefill": [*whole, row(32, 48, 10.0)]})
    longest = summary[-1]
    assert (longest["prompt"], longest["full_seconds"]) == (256, sum(1 + 16 * n for n in range(16)))
    # Three chunks up to the budget and a chunk, 12 sparse ones, and the last attends to all.
    assert longest["seconds"] == (1 + 17 + 33) + 12 * 10 + 241
    assert summary[0]["share"] == 1.0  # 16 tokens, below the budget
