"""diff: equal where nothing was dropped, measured where something was, and broken graphs found."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from snapexport.cli.app import main
from snapexport.compare.difference import Distance, tolerance
from snapexport.contract.build_directory import Build
from snapexport.vault import CHECKPOINT
from tests.builds import build
from tests.oracle import checkpoints, wholes


def diff(capsys: pytest.CaptureFixture[str], build: Build, *flags: str) -> Any:
    status = main(["diff", str(build.directory), "--json", *flags])
    assert status == 0
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_diff_finds_a_difference_only_where_positions_were_dropped(
    capsys: pytest.CaptureFixture[str], tiny_build: Build
) -> None:
    found = diff(capsys, tiny_build, "--steps", "4", "--lengths", "12", "60")
    rows = found["differences"]
    assert {row["reference"] for row in rows} == {"transformers", "full cache"}
    for row in rows:
        compressed = (row["system"], row["output"], row["prompt_length"]) == (
            "snapstream",
            "decode.logits",
            60,
        )
        assert row["lossless"] is not compressed
        if compressed:
            assert row["distance"]["max_abs_error"] > 1e-2
        else:
            assert row["passed"]
            assert row["distance"]["max_abs_error"] < 1e-3
            assert row["distance"]["top1_agreement"] == 1
            assert row["distance"]["kl_divergence"] < 1e-6


@pytest.mark.parametrize("kind", wholes.FEW)
def test_diff_compares_the_text_of_a_vision_language_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    source = tmp_path / kind
    wholes.make(kind, source)
    built = build(source, tmp_path / "b", L_max=64, L_recent=24, K=16, L_obs=4, prefill_chunk=32)
    for flags in ([], ["--model", str(source)]):
        rows = diff(capsys, built, "--steps", "3", "--lengths", "40", *flags)["differences"]
        assert rows and all(row["passed"] for row in rows)


def test_diff_refuses_files_that_transformers_would_fill_with_random_weights(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, tiny_build: Build, tmp_path: Path
) -> None:
    cut = shutil.copytree(checkpoint, tmp_path / "cut")
    tensors = load_file(cut / "model.safetensors")
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    save_file({n: one for n, one in tensors.items() if n != name}, cut / "model.safetensors")
    assert main(["diff", str(tiny_build.directory), "--model", str(cut), "--steps", "2"]) == 2
    assert name in capsys.readouterr().err


def test_diff_exits_with_1_for_weights_of_another_model(
    capsys: pytest.CaptureFixture[str], tiny_build: Build, tmp_path: Path
) -> None:
    other = checkpoints.make("llama", tmp_path / "other", seed=9)
    flags = ["--model", str(other), "--steps", "2"]
    assert main(["diff", str(tiny_build.directory), *flags]) == 1
    out = capsys.readouterr().out
    assert "DIFFERS: nothing was dropped, and a logit differs by more than 0.001" in out
    assert "compressed: the cost of the smaller cache" in out


@pytest.mark.parametrize(
    ("options", "exact"),
    [
        ({"prefill_chunk": 64}, False),
        ({"policy": "full", "L_recent": None, "K": None, "L_obs": None}, True),
        ({"target": "portable"}, False),
        ({"dtype": "fp16"}, False),
        ({"tokens_per_step": 3}, False),
    ],
    ids=["single-shot", "full", "portable", "fp16", "steps of several tokens"],
)
def test_diff_compares_every_kind_of_build(
    capsys: pytest.CaptureFixture[str],
    checkpoint: Path,
    tmp_path: Path,
    options: dict[str, Any],
    exact: bool,
) -> None:
    common = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 24}
    built = build(checkpoint, tmp_path / "b", **common | options)
    rows = diff(capsys, built, "--steps", "3")["differences"]
    assert all(row["passed"] for row in rows if row["lossless"])
    costly = [(row["prompt_length"], row["output"]) for row in rows if not row["lossless"]]
    assert costly == ([] if exact else [(61, "decode.logits")])
    assert {row["prompt_length"] for row in rows} == ({1, 48} if exact else {21, 61})


def test_diff_counts_what_sparse_prefill_leaves_out_as_a_cost(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path
) -> None:
    common = {"L_max": 96, "L_recent": 40, "K": 50, "L_obs": 4, "prefill_chunk": 16}
    built = build(checkpoint, tmp_path / "b", **common, prefill_budget=48, baseline=True)
    rows = diff(capsys, built, "--steps", "2", "--lengths", "64", "90")["differences"]
    costly = {(row["prompt_length"], row["system"]) for row in rows if not row["lossless"]}
    assert costly == {(90, "snapstream")}
    assert all(row["passed"] for row in rows if row["lossless"])


def test_distance_has_error_agreement_and_divergence() -> None:
    one, other = np.log([[0.5, 0.5], [0.9, 0.1]]), np.log([[0.25, 0.75], [0.9, 0.1]])
    distance = Distance.between(one.astype(np.float32), other.astype(np.float32))
    assert distance.max_abs_error == pytest.approx(np.log(2), rel=1e-6)
    assert distance.top1_agreement == 0.5
    assert distance.kl_divergence == pytest.approx(0.5 * 0.5 * np.log(4 / 3), rel=1e-6)


def test_integer_weights_are_held_to_the_logits_deviation_and_others_to_a_number() -> None:
    def bounds(rounds: bool) -> list[float]:
        manifest: Any = SimpleNamespace(rounds_activations=rounds, dtype="fp32")
        return [tolerance(manifest, deviation) for deviation in (1.0, 4.0)]

    assert bounds(rounds=True) == [0.5, 2.0]
    assert bounds(rounds=False) == [1e-3, 1e-3]


def test_rounded_weights_are_not_the_reason_where_positions_were_dropped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    common = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 16}
    made = build(CHECKPOINT, tmp_path / "b", weights="int4", prompt_cache_dtype="fp16", **common)
    assert main(["diff", str(made.directory), "--steps", "2", "--progress", "plain"]) == 0
    out, err = capsys.readouterr()
    runs = [line.partition(" runs")[0] for line in err.splitlines() if " runs" in line]
    assert runs == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"], "not a line for each run"
    assert "compressed: the cost of the smaller cache" in out and "quantized: " in out
    assert [line.split()[-1] for line in out.splitlines() if " decode " in line][-1] == "compressed"
