"""The memory that `plan` and `inspect` tell of models whose layers differ."""

from pathlib import Path
from typing import Any

import pytest

from snapexport.builder import BuildOptions
from snapexport.builder.plan.footprint import PlannedTensors
from snapexport.cli.summary import build_summary, print_summary
from snapexport.contract.memory import cache_bytes
from tests.graphs.layered import MODELS, build

FLAGS: dict[str, Any] = {"L_max": 64, "L_sink": 2, "L_recent": 12, "K": 10, "L_obs": 4}
HEADS = {
    "gemma-4": "4 heads over 2 KV heads of 16 in 2 layers, 4 heads over 1 KV heads of 32 in 2",
    "gemma-4, shared caches": "1 KV heads of 32 in 2 layers; 2 read the cache of another",
    "a shared cache in the middle": "4 heads over 2 KV heads of 16 in 2 layers, 2 heads over 1 KV",
    "llama-4": "3 layers, 4 heads over 2 KV heads of 16",
    "chunks longer than prompts": "4 heads over 2 KV heads of 16",
    "mimo": "4 heads over 2 KV heads of 24 + 16 in 1 layer, 4 heads over 4 KV heads of 24 + 16 in",
    "other heads, soft cap": "2 heads over 2 KV heads of 16 in 1 layer, 8 heads over 4 KV heads",
}


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_counts_the_caches_of_the_build(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = MODELS[name]
    options = BuildOptions.of(model="", out=tmp_path, **FLAGS)
    geometry = options.geometry(model.facts)
    made = build(model, geometry, tmp_path / "b", batch=3)
    planned, held = (
        PlannedTensors.of(model.facts, options, geometry, 16),
        cache_bytes(made.manifest),
    )
    assert (3 * planned.request_cache, planned.prompt_cache) == (held.decode, held.prefill)
    assert held.full == 3 * 64 * 4 * model.facts.position_values == 3 * held.prefill
    assert build_summary(made)["memory"]["compression"] == held.full / held.decode
    print_summary(made)
    assert HEADS[name] in " ".join(capsys.readouterr().out.split())
