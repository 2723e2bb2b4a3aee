"""fp16 caches of the prompt in prefill, of fp32 models: against transformers, and refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, DynamicCache

from snapexport.builder import BuildOptions
from snapexport.builder.plan.footprint import PlannedTensors
from snapexport.contract.memory import cache_bytes
from snapexport.errors import UserError
from snapexport.runtime.engine.open_executor import open_executor
from tests.builds import build
from tests.facts import model_facts
from tests.oracle import cases
from tests.oracle.cases import Case, build_of
from tests.oracle.compare import noise

LLAMA = Case(prompt_cache_dtype="fp16", baseline=True)
CASES = (
    LLAMA,
    Case("gemma2", prompt_cache_dtype="fp16"),
    Case("falcon_h1", prompt_cache_dtype="fp16"),
    Case("gpt-oss", prompt_cache_dtype="fp16", cache_dtype="fp16", short_chunks=(8,)),
    Case("llama", prompt_cache_dtype="fp16", cache_dtype="int8", vote_queries="pseudo"),
    Case("llama", prompt_cache_dtype="fp16", vote_queries="repeat", top_tokens=4),
)
NOISE = 0.005
"""Largest noise of logits, relative to their standard deviation."""


class _Rounded(DynamicCache):
    """Holds keys and values in fp16, which attention reads."""

    def update(self, key: Any, value: Any, *more: Any, **others: Any) -> Any:
        rounded = key.half().float(), value.half().float()
        return super().update(*rounded, *more, **others)


def rounded_logits(case: Case, ids: tuple[int, ...]) -> NDArray[np.float32]:
    """By transformers, of the token after the prompt."""
    model = AutoModelForCausalLM.from_pretrained(cases.checkpoint(case.checkpoint)).float().eval()
    with torch.no_grad():
        cache = _Rounded(config=model.config)
        found = model(torch.tensor([ids]), past_key_values=cache).logits[0, -1]
    logits: NDArray[np.float32] = found.numpy()
    return logits


@pytest.mark.parametrize("length", [1, 40, 90])
def test_prefill_agrees_with_transformers_over_a_rounded_cache(length: int) -> None:
    ids = cases.prompt(length)
    got = open_executor(build_of(LLAMA), threads=1).prefill_prompt(0, ids).logits
    assert noise(got[None], rounded_logits(LLAMA, ids)[None]) < NOISE / 5


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_are_close_to_those_of_a_prompt_cache_in_fp32(case: Case) -> None:
    plain = replace(case, prompt_cache_dtype=None)
    ours, exact = (open_executor(build_of(one), threads=1) for one in (case, plain))
    for length in (9, 33, 60):
        ids, found = cases.prompt(length), []
        for one in (ours, exact):
            rows = [one.prefill_prompt(0, ids).logits.copy()]
            for step in range(4):
                given = (np.array([value]) for value in (ids[step], length + step, length))
                rows.append(one.decode(*given).logits[:1].copy()[0])
            found.append(np.stack(rows))
        assert 0 < noise(*found) < (4 if case.cache_dtype == "int8" else 1) * NOISE, length


def test_the_compressed_cache_holds_what_the_prompts_cache_held() -> None:
    """Values of fp16, in a cache of fp32 and in one of fp16: they are not rounded twice."""
    executor = open_executor(build_of(LLAMA), threads=1)
    executor.prefill_prompt(0, cases.prompt(70))
    for name, cache in executor.decode_buffers.items():
        if name.startswith("past_key_values"):
            assert cache.dtype == np.float32
            assert np.array_equal(cache[0], cache[0].astype(np.float16))


def test_the_prompt_cache_takes_half_and_a_plan_counts_it(tmp_path: Path) -> None:
    plain = cache_bytes(build_of(replace(LLAMA, prompt_cache_dtype=None)).manifest)
    half = cache_bytes(build_of(LLAMA).manifest)
    assert 2 * half.prefill == plain.prefill and half.decode == plain.decode
    counted = []
    for given in ({}, {"prompt_cache_dtype": "fp16"}):
        options = BuildOptions.of(model="m", out=tmp_path, L_max=1024, **given)
        facts = model_facts(2)
        geometry = options.geometry(facts)
        counted.append(PlannedTensors.of(facts, options, geometry, 128).prompt_cache)
    assert counted[0] == 2 * counted[1]


def test_a_baseline_beside_it_has_a_prompt_cache_of_its_own() -> None:
    ours = open_executor(build_of(LLAMA), threads=1)
    full = open_executor(build_of(LLAMA), baseline=True, prompt_cache=ours.prompt_cache, threads=1)
    assert full.prompt_cache is not ours.prompt_cache
    ids = cases.prompt(50)
    assert (
        noise(
            full.prefill_prompt(0, ids).logits[None],
            cases.oracle(LLAMA, 50, 1).prefill_logits[None],
        )
        < 1e-4
    )


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"target": "portable"}, "--target portable"),
        ({"target": "tensorrt", "dtype": "bf16"}, "--target tensorrt --dtype bf16"),
        ({"policy": "full"}, "--policy full"),
        ({"prefill_chunk": 96}, "a prefill chunk of L_max"),
        ({"prompt_cache_dtype": "int8"}, "'int8' is not known"),
    ],
)
def test_what_has_no_narrow_prompt_cache_is_refused(
    options: dict[str, Any], refused: str, checkpoint: Path, tmp_path: Path
) -> None:
    given = {"L_max": 96, "prefill_chunk": 32, "prompt_cache_dtype": "fp16"} | options
    with pytest.raises(UserError, match=refused):
        build(checkpoint, tmp_path / "b", **given)
    assert not (tmp_path / "b").exists()


def test_latents_are_refused(tmp_path: Path) -> None:
    options = {"L_max": 96, "prompt_cache_dtype": "fp16"}
    with pytest.raises(UserError, match="latent attention"):
        build(cases.checkpoint("deepseek-v3"), tmp_path / "b", **options)
