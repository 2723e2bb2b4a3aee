"""Other caches from a build's traces: what a build of their own, and transformers, would answer."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from snapexport import LLM, SamplingParams
from snapexport.builder.derive import derive, is_soft_capped
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.errors import UserError
from snapexport.measure.eval.systems import SystemMaker
from tests.builds import build
from tests.oracle import cases, masked

STEPS = 12
LENGTH = 60


def system(own: Build, name: str, slots: int = 24) -> CacheGeometry:
    manifest = own.manifest
    lineup = SystemMaker(manifest.model, manifest.geometry.L_max, manifest.geometry, 16)
    return lineup.systems([name], [slots])[0].geometry


def answer(directory: Path, prompt: Sequence[int]) -> tuple[list[int], list[np.ndarray] | None]:
    """Greedy tokens, and what was kept."""
    llm = LLM(directory, threads=1)
    params = SamplingParams(max_tokens=STEPS + 1, ignore_eos=True)
    (completion,) = llm.generate([list(prompt)], params)
    return list(completion.token_ids), llm.executor.topk_positions()


def clear_run(checkpoint: Path, geometry: CacheGeometry) -> masked.OracleRun:
    prompts = (cases.prompt(LENGTH, seed) for seed in range(100))
    runs = (masked.run(checkpoint, prompt, geometry, STEPS) for prompt in prompts)
    return next(run for run in runs if run.is_clear)


def assert_is_transformers(derived: Build, checkpoint: Path) -> None:
    want = clear_run(checkpoint, derived.manifest.geometry)
    tokens, kept = answer(derived.directory, want.prompt)
    assert tokens == want.tokens
    for ours, theirs in zip(kept or [], want.topk_positions, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "name", ["snapstream:vote=sum-squares,pool=max", "streaming", "sage", "snapkv", "full"]
)
def test_a_derived_build_answers_like_transformers_with_the_same_cache(
    tiny_build: Build, checkpoint: Path, tmp_path: Path, name: str
) -> None:
    geometry = system(tiny_build, name)
    derived = derive(tiny_build, geometry, tmp_path / "d")
    assert derived.manifest.geometry == geometry
    if geometry.compresses:
        assert_is_transformers(derived, checkpoint)
    else:
        want = cases.masked.run_plain(checkpoint, cases.prompt(LENGTH), STEPS)
        # The last token's own position is L_max: the full cache ends there.
        room = geometry.L_max - LENGTH + 1
        assert answer(derived.directory, want.prompt)[0] == want.tokens[:room]


@pytest.fixture(scope="module")
def single_shot_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("single") / "b"
    options: dict[str, Any] = {"prefill_chunk": 64, "target": "portable", "batch": 1}
    return build(checkpoint, out, L_max=64, kv_budget=24, baseline=True, **options)


@pytest.mark.parametrize("name", ["streaming", "snapkv:budget=pyramid,group=max"])
def test_a_derived_single_shot_portable_build_answers_like_transformers(
    single_shot_build: Build, checkpoint: Path, tmp_path: Path, name: str
) -> None:
    derived = derive(single_shot_build, system(single_shot_build, name), tmp_path / "d")
    assert "compress" not in derived.manifest.graphs
    assert_is_transformers(derived, checkpoint)


def test_a_derived_build_equals_a_build_of_the_same_options(
    tiny_build: Build, checkpoint: Path, tmp_path: Path
) -> None:
    """From the checkpoint, with a trace of its own."""
    options: dict[str, Any] = {"L_sink": 2, "L_recent": 14, "K": 8, "budget": "pyramid"}
    one_decode = {"decode_batches": (4,)}
    vote: dict[str, Any] = {"vote": "sum-squares", "pool": "max", "group": "sum", "L_obs": 6}
    plain = build(
        checkpoint, tmp_path / "b", L_max=64, prefill_chunk=24, **options, **vote, **one_decode
    )
    derived = derive(tiny_build, plain.manifest.geometry, tmp_path / "d")
    assert derived.manifest.graphs == plain.manifest.graphs
    for seed in range(3):
        prompt = cases.prompt(LENGTH, seed)
        tokens, kept = answer(derived.directory, prompt)
        wanted_tokens, wanted = answer(plain.directory, prompt)
        assert tokens == wanted_tokens
        assert kept and wanted
        for pair in zip(kept, wanted, strict=True):
            np.testing.assert_array_equal(*pair)


@pytest.mark.parametrize("link", [False, True])
def test_a_derived_build_has_the_same_weights_and_no_traces(
    tiny_build: Build, tmp_path: Path, link: bool
) -> None:
    geometry = system(tiny_build, "streaming")
    copy = Path(shutil.copytree(tiny_build.directory, tmp_path / "copy"))
    derived = derive(Build.open(copy), geometry, tmp_path / "d", link_weights=link)
    linked = derived.manifest.linked_weights
    for file in derived.manifest.weights:
        path = derived.directory / file.file
        assert path.stat().st_nlink == 1 + linked
        assert path.samefile(copy / file.file) == linked
    assert linked <= link  # a file system with reflinks needs no hard link
    assert derived.verify_weights() == []
    assert not derived.manifest.traces
    with pytest.raises(UserError, match="has no baseline"):
        derive(derived, system(tiny_build, "full"), tmp_path / "e")


def test_a_derived_build_can_have_a_larger_L_max(
    tiny_build: Build, checkpoint: Path, tmp_path: Path
) -> None:
    own = tiny_build.manifest
    (longer,) = SystemMaker(own.model, 100, own.geometry, 16).systems(["snapstream"], [24])
    derived = derive(tiny_build, longer.geometry, tmp_path / "d")
    want = masked.run(checkpoint, cases.prompt(100), longer.geometry, STEPS)
    assert answer(derived.directory, want.prompt)[0] == want.tokens


def test_derive_refuses_a_window_longer_than_the_prefill_chunk(
    tiny_build: Build, tmp_path: Path
) -> None:
    geometry = system(tiny_build, "snapstream:L_obs=25,L_recent=30", 48)
    with pytest.raises(UserError, match=r"window of 25 .* prefill chunk of 24"):
        derive(tiny_build, geometry, tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_soft_capped_attention_is_detected_in_the_trace(tiny_build: Build, tmp_path: Path) -> None:
    assert not is_soft_capped(tiny_build)
    capped = Build(Path(shutil.copytree(tiny_build.directory, tmp_path / "b")), tiny_build.manifest)
    trace = onnx.load(capped.trace("decode"), load_external_data=False)
    attributes = [one for node in trace.graph.node for one in node.attribute]
    for attribute in attributes:
        if attribute.name == "softcap":
            attribute.f = 30.0
    capped.trace("decode").write_bytes(trace.SerializeToString())
    assert is_soft_capped(capped)
    with pytest.raises(UserError, match="soft-capped"):
        derive(capped, system(tiny_build, "full"), tmp_path / "d", with_queries=True)


def test_caches_of_quantized_weights_share_the_builds_weight_files(
    checkpoint: Path, tmp_path: Path
) -> None:
    made = build(
        checkpoint, tmp_path / "b", L_max=64, kv_budget=24, L_obs=4, prefill_chunk=16,
        baseline=True, weights="int4",
    )  # fmt: skip
    derived = derive(made, made.manifest.geometry, tmp_path / "d", link_weights=True)
    prompt = cases.prompt(LENGTH - STEPS, seed=1)
    assert answer(derived.directory, prompt)[0] == answer(made.directory, prompt)[0]
