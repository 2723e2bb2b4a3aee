"""The simulation of large models: sizes, rooflines by hand, and its experiment at a small size."""

import json
from pathlib import Path

import pytest

from tools.studies.speed.__main__ import main
from tools.studies.speed.experiments.simulate import SIMULATE, cluster_of, limits, transferred
from tools.studies.speed.large_models import H200, MODELS, workers

LLAMA, DEEPSEEK = MODELS
L_MAX, BUDGET, PROMPT = 131072, 32768, 130048


def test_rows_have_the_bytes_of_published_shapes() -> None:
    full, compressed = workers(LLAMA, H200, L_MAX, BUDGET, PROMPT)
    # 32 layers, 8 KV heads of 128, keys and values in two bytes
    assert full.row_bytes == 2 * 2 * 32 * 8 * 128 * L_MAX == 16 << 30
    assert compressed.row_bytes == full.row_bytes // 4
    full, compressed = workers(DEEPSEEK, H200, L_MAX, BUDGET, PROMPT)
    # 61 layers of 512 + 64 numbers
    assert full.row_bytes == 2 * 61 * 576 * L_MAX
    assert compressed.row_bytes == full.row_bytes // 4


def test_prefill_roofline_is_two_operations_a_weight_and_four_a_pair_of_head_elements() -> None:
    full, compressed = workers(LLAMA, H200, L_MAX, BUDGET, PROMPT)
    head = 128256 * 4096
    weights = 8_030_261_248 - 2 * head - 65 * 4096  # without embedding, head and norms
    pairs = PROMPT * (PROMPT + 1) // 2
    operations = 2 * (weights * PROMPT + head) + 4 * 32 * 32 * 128 * pairs
    assert full.prefill_seconds == pytest.approx(operations / H200.rates.operations)
    assert full.prefill_seconds < compressed.prefill_seconds < 1.01 * full.prefill_seconds


def test_decode_roofline_reads_weights_once_and_every_requests_cache() -> None:
    full, compressed = workers(LLAMA, H200, L_MAX, BUDGET, PROMPT)
    weights = 2 * (8_030_261_248 - 128256 * 4096)  # an embedding is indexed
    for worker, slots in ((full, L_MAX), (compressed, BUDGET)):
        position = worker.row_bytes // slots
        nbytes = weights + 3 * (worker.row_bytes + position)
        expected = nbytes / H200.rates.nbytes
        assert worker.step_seconds(3) == pytest.approx(expected, rel=1e-4)


def test_latents_of_a_request_are_read_by_one_device_of_a_worker() -> None:
    _, worker = workers(DEEPSEEK, H200, L_MAX, BUDGET, PROMPT)
    assert worker.devices == 16
    one, sixteen, seventeen = map(worker.step_seconds, (1, 16, 17))
    cache = worker.row_bytes / H200.rates.nbytes
    assert seventeen - sixteen > 0.99 * cache
    assert one > cache


def test_one_requests_parts_add_up_to_its_ttft() -> None:
    full, compressed = workers(LLAMA, H200, L_MAX, BUDGET, PROMPT)
    found = [transferred(one, 100, SIMULATE.cpu) for one in (full, compressed)]
    for row in found:
        parts = row["prefill_seconds"] + row["transfer_seconds"] + row["copy_seconds"]
        assert row["ttft_seconds"] == pytest.approx(parts, rel=1e-4)
        assert row["saturated_per_second"] == pytest.approx(12.5e9 / row["row_bytes"], rel=1e-4)
    assert found[0]["transfer_seconds"] == pytest.approx(4 * found[1]["transfer_seconds"], rel=1e-4)


def test_limits_are_those_of_prefill_link_and_batch_slots() -> None:
    full, _ = workers(LLAMA, H200, L_MAX, BUDGET, PROMPT)
    cluster = cluster_of(full, (8, 2), 400, SIMULATE.cpu)
    found = limits(cluster, tokens=101)
    assert found["prefill"] == pytest.approx(8 / full.prefill_seconds)
    assert found["link"] == pytest.approx(2 * 50e9 / full.row_bytes)
    steps = 100 * full.step_seconds(cluster.slots)
    assert found["decode"] == pytest.approx(2 * cluster.slots / steps)


def test_simulation_is_named_one_and_stays_within_its_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--quick", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "simulate.json").read_text())
    assert report["simulated"] and "simulated: no device" in report["notes"][0]
    deployments = report["sections"]["deployments"]
    assert len(deployments) == 4 and len(report["summary"]) == 2
    for row in deployments:
        allowed = min(row[f"{part}_per_second"] for part in ("prefill", "link", "decode"))
        assert 0.5 * allowed < row["requests_per_second"] < 1.01 * allowed
        assert row["ttft_seconds"]["samples"] == 40
    of_paper = report["sections"]["table_5"]
    assert all(1 < row["x_full"] < 4 < row["published_x_full"] for row in of_paper)
    assert "tokens/s simulated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("tokens=1", "tokens is too small"),
        ("links=[0]", "links is too small"),
        ("deployments=[[1,0]]", "deployments is too small"),
        ("tokens=131072", "tokens=131072 leaves no prompt"),
        ("landing_rows=7", "full rows leave no batch slot beside landing rows"),
    ],
)
def test_simulation_refuses_what_it_cannot_simulate(
    given: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--quick", "--out", str(tmp_path), "--set", given]) == 2
    error = capsys.readouterr().err
    assert message in error and "\n\nhint: " in error
