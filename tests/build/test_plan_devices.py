"""`plan --devices`: the bytes of one device against arithmetic by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from snapexport.build.plan.devices import DevicesPlan, Share, plan_devices
from snapexport.build.plan.request import PlanRequest
from snapexport.cli.app import main
from snapexport.measure.bench.checkpoints import SHAPES
from tests.oracle import checkpoints

GIB = 2**30
L_MAX, BUDGET = 131072, 32768
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
QWEN3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}


def config(directory: Path, values: dict[str, Any]) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(values))
    return directory


def planned(model: Path, devices: int, memory: int, **given: Any) -> DevicesPlan:
    options = {"model": str(model), "L_max": L_MAX, "kv_budget": BUDGET, "target": "tensorrt"}
    return plan_devices(PlanRequest(memory, options | given), devices)


def decodes(plan: DevicesPlan) -> tuple[Share, Share]:
    """With the full cache, and with the compressed one."""
    _, full, compressed = plan.shares
    return full, compressed


@pytest.mark.parametrize("devices", [4, 8, 16])
def test_a_dense_model_is_cut_by_heads_columns_and_vocabulary(devices: int, tmp_path: Path) -> None:
    plan = planned(config(tmp_path / "m", _LLAMA | SHAPES["70b"]), devices, 141 * GIB)
    hidden, inner, layers, heads, kv_heads, width = 8192, 28672, 80, 64, 8, 128
    held = max(1, kv_heads // devices)  # 16 devices: each KV head lies on two
    attention = 2 * hidden * heads * width // devices + 2 * hidden * held * width
    mlp = 3 * hidden * inner // devices
    vocabulary, norms = 2 * 128256 // devices * hidden, (2 * layers + 1) * hidden
    weights = 2 * (layers * (attention + mlp) + vocabulary + norms)
    full, compressed = decodes(plan)
    assert {one.weights for one in plan.shares} == {weights}
    assert plan.weights["decode"]["MLP"] == 2 * layers * mlp
    assert sum(plan.weights["prefill"].values()) == weights
    assert full.request_cache == 2 * 2 * layers * held * width * L_MAX
    assert compressed.request_cache == 2 * 2 * layers * held * width * BUDGET
    assert compressed.cache == 4 and compressed.requests == compressed.batch > 4 * full.batch
    for one in (full, compressed):
        assert one.peak <= 141 * GIB < one.peak + one.request_cache + GIB


def test_each_expert_is_cut_inside_and_its_router_is_whole(tmp_path: Path) -> None:
    plan = planned(config(tmp_path / "m", QWEN3_MOE), 2, 16 * GIB)
    experts = 4 * 128 * 3 * 2048 * (768 // 2)
    attention = 4 * (2 * 2048 * 4096 // 2 + 2 * 2048 * 512 // 2)
    everywhere = 4 * 128 * 2048 + 4 * (2 * 2048 + 2 * 128) + 2048
    assert plan.weights["decode"] == {
        "vocabulary": 2 * 2 * 151936 // 2 * 2048,
        "attention": 2 * attention,
        "MLP": 0,
        "experts": 2 * experts,
        "on every device": 2 * everywhere,
    }


@pytest.mark.parametrize("weights", [None, "fp8"])
def test_latents_lie_whole_in_prefill_and_by_request_in_decode(
    weights: str | None, tmp_path: Path
) -> None:
    shape = SHAPES["r1"] | {"quantization_config": FP8}
    plan = planned(config(tmp_path / "m", shape), 16, 141 * GIB, weights=weights)
    prefill, (full, compressed) = plan.shares[0], decodes(plan)
    position = 2 * 61 * (512 + 64)
    assert full.request_cache == position * L_MAX == pytest.approx(8.58 * GIB, rel=1e-3)
    assert compressed.request_cache == position * BUDGET
    assert prefill.request_cache == position * (L_MAX + BUDGET)
    assert (full.requests, compressed.requests) == (16 * full.batch, 16 * compressed.batch)
    experts = 58 * 256 * 3 * 7168 * (2048 // 16)
    stored = experts + 4 * experts // 128 if weights else 2 * experts
    assert plan.weights["decode"]["experts"] == stored
    # Decode has kv_b of all heads on every device, prefill that of 8 heads.
    up = 2 * 61 * 512 * 128 * 256
    assert full.weights - prefill.weights == up - up // 16


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--devices", "3"], "3: 64 attention heads are no multiple"),
        (["--devices", "0"], "there has to be a device"),
        (["--devices", "2", "--batch", "4"], "--batch is not supported with --devices"),
        (["--devices", "2", "--target", "onnxruntime"], "which runs on one CPU"),
        (["--devices", "2", "--memory", "80GiB"], "prefill does not fit on 2 devices"),
        (["--devices", "2", "--weights", "fp8"], "keeps fp8 weights as they are"),
    ],
)
def test_what_devices_cannot_have_is_refused(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = config(tmp_path / "m", _LLAMA | SHAPES["70b"])
    usual = ["--model", str(model), "--L-max", str(L_MAX), "--memory", "141GiB"]
    assert main(["plan", *usual, "--target", "tensorrt", *flags]) == 2
    told = capsys.readouterr().err
    assert message in told and "hint: " in told and "Traceback" not in told


def test_json_has_a_share_for_each_role_and_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = checkpoints.make("llama", tmp_path / "m")
    usual = ["--model", str(model), "--L-max", "64", "--memory", "2GiB", "--target", "tensorrt"]
    assert main(["plan", *usual, "--devices", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["role"] for one in told["shares"]] == ["prefill", "decode", "decode"]
    assert told["devices"] == 2 and told["shares"][2]["compression"] > 1
