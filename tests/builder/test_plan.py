"""`snapexport plan`: its counts against builds and known sizes, and its recommendations."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapexport.builder import BuildOptions
from snapexport.builder.plan import Plan, PlanRequest, make_plan
from snapexport.builder.plan.footprint import PlannedTensors
from snapexport.builder.plan.model import PlannedExperts, PlannedForms, PlannedModel, read_model
from snapexport.builder.plan.plan import plan_for
from snapexport.builder.plan.request import command, parse_memory
from snapexport.builder.plan.weights import held_bytes, read_bytes, stored_bytes
from snapexport.cli import app
from snapexport.cli import build as build_command
from snapexport.cli import plan as plan_command
from snapexport.cli.flags import values
from snapexport.contract.build_directory import Build
from snapexport.contract.memory import as_flag, cache_bytes
from snapexport.errors import UserError
from snapexport.exporter.weights.forms.choice import INT4
from snapexport.files.copying import CLONE_BLOCK
from snapexport.files.safetensors import read_header
from tests.builds import build
from tests.facts import model_facts
from tests.oracle import checkpoints
from tests.refused import refused

GIB = 2**30


def llama(layers: int, hidden: int, intermediate: int, heads: int, **changes: Any) -> PlannedModel:
    """A Llama 3.1, of heads of 128 and 8 KV heads."""
    attention = [(hidden, hidden), (1024, hidden), (1024, hidden), (hidden, hidden)]
    mlp = [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
    sizes = {"num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128}
    sizes |= {"vocab_size": 128256, "max_position_embeddings": 131072}
    facts = model_facts(layers, **sizes)
    linear = tuple((attention + mlp) * layers + [(128256, hidden)])
    forms = PlannedForms(linear=(INT4,) * len(linear), embedding=INT4, experts=INT4)
    model = PlannedModel(
        facts=facts,
        hidden_size=hidden,
        intermediate_size=intermediate,
        linear=linear,
        experts=None,
        others=hidden * (2 * layers + 1),
        tied=False,
        softcapped=False,
        stored="bf16",
        forms={"int4": forms},
    )
    return dataclasses.replace(model, **changes)


LLAMA_8B = llama(32, 4096, 14336, 32)
LLAMA_70B = llama(80, 8192, 28672, 64)


def test_a_step_reads_the_experts_that_its_tokens_choose() -> None:
    experts = PlannedExperts(layers=2, count=64, chosen=4, hidden_size=512, width=128)
    assert experts.used(16) == pytest.approx(64 * (1 - (15 / 16) ** 16))
    dense = llama(2, 512, 1024, 8)
    model = dataclasses.replace(dense, experts=experts)
    options = BuildOptions.of(model="m", out=Path("o"), L_max=1024, batch=1)
    read, of_dense = (read_bytes(one, options) for one in (model, dense))
    stored, stored_dense = (stored_bytes(one, options) for one in (model, dense))
    assert read - of_dense == 2 * 4 * experts.elements * 4
    assert stored - stored_dense == 2 * 64 * experts.elements * 4


def planned(model: PlannedModel, memory: int, L_max: int = 131072, **flags: Any) -> Plan:
    return plan_for(PlanRequest(memory, {"model": "m", "L_max": L_max} | flags), model)


def options_of(line: str) -> BuildOptions:
    """The build options of a `snapexport build` command line."""
    program, *words = shlex.split(line)
    assert program == "snapexport"
    arguments = app.parser().parse_args(words)
    return BuildOptions.of(**values(arguments, build_command.helps()))


# Known sizes.


@pytest.mark.parametrize(
    ("model", "flags", "request_cache", "prompt_cache"),
    [
        # 32 layers x 8 heads x 128 x (key, value) x 2 bytes a token; and 80 layers of the same.
        (LLAMA_8B, {"dtype": "bf16"}, 1, 16),
        (LLAMA_8B, {"dtype": "fp32"}, 2, 32),
        (LLAMA_8B, {"dtype": "bf16", "prefill_chunk": 131072}, 1, 0),
        (LLAMA_70B, {"dtype": "bf16"}, 2.5, 40),
    ],
)
def test_plan_counts_the_cache_bytes_of_llama_3_1(
    model: PlannedModel, flags: dict[str, Any], request_cache: float, prompt_cache: int
) -> None:
    options = BuildOptions.of(model="m", out=Path("o"), L_max=131072, kv_budget=8192, **flags)
    geometry = options.geometry(model.facts)
    counted = PlannedTensors.of(model.facts, options, geometry, options.chunk(geometry))
    assert counted.request_cache == request_cache * GIB
    assert counted.prompt_cache == prompt_cache * GIB


def test_plan_counts_the_weight_bytes_of_llama_3_1() -> None:
    bf16 = {"model": "m", "out": Path("o"), "L_max": 131072, "dtype": "bf16", "target": "tensorrt"}
    plans, on_cpu = BuildOptions.of(**bf16), BuildOptions.of(model="m", out=Path("o"), L_max=131072)
    geometry = plans.geometry(LLAMA_8B.facts)
    # 8,030,261,248 and 70,553,706,496 parameters, as published.
    assert stored_bytes(LLAMA_8B, plans) == 2 * 8_030_261_248
    assert stored_bytes(LLAMA_70B, plans) == 2 * 70_553_706_496
    assert held_bytes(LLAMA_8B, plans, geometry) == 2 * 8_030_261_248
    own = BuildOptions.of(**bf16, share_weights=False, prefill_capacities=(4096,))
    assert held_bytes(LLAMA_8B, own, geometry) == 3 * 2 * 8_030_261_248
    assert held_bytes(LLAMA_8B, on_cpu, geometry) == 4 * 8_030_261_248
    int4 = dataclasses.replace(on_cpu, weights="int4")
    matrices = (8_030_261_248 - LLAMA_8B.others) // 128 * 73
    linear = matrices - 128256 * 4096 // 128 * 73
    assert stored_bytes(LLAMA_8B, int4) == matrices + 4 * LLAMA_8B.others
    assert held_bytes(LLAMA_8B, int4, geometry) == stored_bytes(LLAMA_8B, int4) + 3 * linear
    assert read_bytes(LLAMA_8B, plans) == 2 * (8_030_261_248 - 128256 * 4096)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("80GiB", 80 * GIB),
        ("80GB", 80 * 10**9),
        ("24G", 24 * 10**9),
        ("1.5 TiB", 3 * 2**39),
        ("512m", 512 * 10**6),
        ("4096", 4096),
        ("4096B", 4096),
        ("8kib", 8192),
        ("24 gb", 24 * 10**9),
    ],
)
def test_memory_sizes_are_parsed_to_bytes(text: str, nbytes: int) -> None:
    assert parse_memory(text) == nbytes


@pytest.mark.parametrize("text", ["", "8XB", "GiB", "-1GiB", "8  GiB", "nan"])
def test_malformed_memory_sizes_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a size"):
        parse_memory(text)


@given(st.integers(1, 2**45))
def test_memory_size_written_as_a_flag_is_never_rounded_down(nbytes: int) -> None:
    assert parse_memory(as_flag(nbytes)) >= nbytes


# Builds.

GEOMETRIES: dict[str, tuple[str, dict[str, Any]]] = {
    "pyramid": ("mistral", {"kv_budget": 24, "budget": "pyramid", "batch": 3, "prefill_chunk": 32}),
    "sliding, single shot": ("gemma3", {"kv_budget": 24, "prefill_chunk": 64, "dtype": "fp16"}),
    "fp16 caches": ("llama", {"kv_budget": 24, "cache_dtype": "fp16", "batch": 3}),
    "int8 caches": ("llama", {"kv_budget": 24, "cache_dtype": "int8"}),
    "int4, tied": ("qwen2-tied", {"policy": "full", "weights": "int4", "prefill_chunk": 32}),
}


def require_counted(build: Build, model: Path, **flags: Any) -> None:
    """Assert that the planned bytes of caches and weights are those of the build."""
    options = BuildOptions.of(model=str(model), out=Path("o"), L_max=64, **flags)
    counted, manifest = read_model(str(model)), build.manifest
    facts, geometry = counted.facts, options.geometry(counted.facts)
    assert facts == manifest.model and geometry == manifest.geometry
    actual = cache_bytes(manifest)
    chunk = options.chunk(geometry)
    tensors = PlannedTensors.of(facts, options, geometry, chunk)
    assert tensors.request_cache * options.batch == actual.decode
    assert tensors.prompt_cache == actual.prefill
    files = sum(file.size for file in manifest.weights)
    headers = len(manifest.weights) * 2 * CLONE_BLOCK
    assert files - headers <= stored_bytes(counted, options) <= files


def test_planned_bytes_equal_those_of_the_build(checkpoint: Path, tiny_build: Build) -> None:
    flags = {"L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 24}
    require_counted(tiny_build, checkpoint, **flags)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * ("single" in n)) for n in GEOMETRIES]
)
def test_planned_bytes_equal_those_of_builds_of_other_geometries(name: str, tmp_path: Path) -> None:
    architecture, flags = GEOMETRIES[name]
    model = checkpoints.make(architecture, tmp_path / "model")
    built = build(model, tmp_path / "b", L_max=64, decode_batches=(), **flags)
    require_counted(built, model, **flags)


def test_command_of_the_recommendation_builds_the_planned_geometry(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = {"model": str(checkpoint), "L_max": 64, "policy": "snapstream", "batch": 1}
    plan = make_plan(PlanRequest(1 * GIB, flags))
    chosen = plan.recommendation
    assert app.main(shlex.split(command(chosen.options))[1:]) == 0
    manifest = Build.open(chosen.options.out).manifest
    assert manifest.geometry == chosen.alternative.geometry
    assert (manifest.batch, manifest.prefill_chunk) == (chosen.batch, chosen.alternative.chunk)
    assert cache_bytes(manifest).decode == chosen.alternative.at(chosen.batch).decode_cache


def test_recommended_directory_is_named_after_the_file_without_its_suffix(tmp_path: Path) -> None:
    asked = PlanRequest(1 * GIB, {"model": str(tmp_path / "SmolLM2.Q4_1.gguf"), "L_max": 64})
    assert asked.out == Path("SmolLM2.Q4_1.build")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "SmolLM2.Q4_1.gguf")
    asked = PlanRequest(1 * GIB, {"model": str(tmp_path / "link.gguf"), "L_max": 64})
    assert asked.out == Path("link.build")


# Recommendations.

memories = st.integers(1, 600).map(lambda gib: gib * GIB)
flags = st.fixed_dictionaries(
    {},
    optional={
        "target": st.sampled_from(["onnxruntime", "tensorrt", "portable"]),
        "batch": st.integers(1, 300),
        "policy": st.sampled_from(["snapstream", "streaming", "sage", "snapkv"]),
        "kv_budget": st.integers(64, 4096),
        "prefill_chunk": st.sampled_from([64, 512, 8192]),
    },
)


def recommended_slots(model: PlannedModel, memory: int, given: dict[str, Any]) -> int:
    try:
        return planned(model, memory, 8192, **given).recommendation.batch
    except UserError:
        return 0


@settings(max_examples=8, deadline=None)
@given(memories, memories, flags)
def test_more_memory_never_recommends_fewer_batch_slots(
    one: int, other: int, given: dict[str, Any]
) -> None:
    few, many = (recommended_slots(LLAMA_8B, m, given) for m in sorted((one, other)))
    assert few <= many


@settings(max_examples=15, deadline=None)
@given(memories, flags)
def test_recommendation_fits_and_its_command_has_the_same_options(
    memory: int, given: dict[str, Any]
) -> None:
    try:
        plan = planned(LLAMA_8B, memory, 8192, **given)
    except UserError as error:
        assert "nothing fits" in error.message
        return
    chosen = plan.recommendation
    assert chosen.alternative.at(chosen.batch).prefill_peak <= memory
    options = options_of(command(chosen.options))
    assert options == chosen.options
    assert options.geometry(LLAMA_8B.facts) == chosen.alternative.geometry
    for name, value in given.items():
        assert getattr(options, name) == value


def test_recommendation_has_the_least_compression_that_holds_the_batch() -> None:
    at = {batch: planned(LLAMA_8B, 80 * GIB, target="tensorrt", batch=batch) for batch in (1, 8)}
    assert not at[1].recommendation.alternative.geometry.compresses
    assert at[8].recommendation.alternative.choice["kv_budget"] == 131072 // 4


def test_plan_shrinks_the_prefill_chunk_before_the_cache() -> None:
    """Memory just below the need of a chunk of 512: the plan takes a chunk of 256."""
    given: dict[str, Any] = {"target": "tensorrt", "kv_budget": 32768, "batch": 4}
    found = planned(LLAMA_8B, 100 * GIB, **given).alternatives
    needs = {one.chunk: one.at(4).prefill_peak for one in found}
    tight = planned(LLAMA_8B, needs[512] - 1, **given).recommendation
    assert tight.alternative.chunk == 256


def test_recommended_dtype_follows_the_requested_cache_dtype(checkpoint: Path) -> None:
    """A bf16 cache of an fp32 checkpoint, for TensorRT."""
    flags = {"model": str(checkpoint), "L_max": 64, "target": "tensorrt", "cache_dtype": "bf16"}
    assert make_plan(PlanRequest(1 * GIB, flags)).recommendation.options.dtype == "bf16"


# Bad input.

BAD: dict[str, tuple[list[str], str]] = {
    "memory 0": (["--memory", "0"], "--memory 0 leaves nothing"),
    "memory below 0": (["--memory=-3GiB"], "--memory '-3GiB' is not a size"),
    "memory of words": (["--memory", "plenty"], "--memory 'plenty' is not a size"),
    "too little": (["--memory", "50MB"], "nothing fits into 47.68 MiB: the least is"),
    "L_max above the model's": (["--L-max", "99999"], "--L-max 99999 is above the model's"),
    "L_max 0": (["--L-max", "0"], "--L-max 0 is below 1"),
    "full, compressed": (
        ["--policy", "full", "--K", "3"],
        "--K 3 is not supported with --policy full",
    ),
    "budget and parts": (
        ["--kv-budget", "30", "--K", "3", "--L-recent", "9"],
        "--kv-budget is given together with both",
    ),
    "no ring": (["--L-sink", "9", "--K", "9", "--L-recent", "0"], "larger than --L-recent 0"),
    "chunk above L_max": (["--prefill-chunk", "65"], "--prefill-chunk 65 is not between"),
    "batch 0": (["--batch", "0"], "--batch 0 is below 1"),
    "no mean queries": (["--mean-queries", "nope.json"], "there is no file nope.json"),
    "top-k above the vocabulary": (["--top-tokens", "9999"], "above the model's vocabulary"),
    "bf16 on the CPU": (["--dtype", "bf16"], "a bf16 build is not supported on the CPU"),
    "int4 for portable": (["--weights", "int4", "--target", "portable"], "--weights int4"),
}


@pytest.fixture
def plan_flags(checkpoint: Path) -> list[str]:
    return ["plan", "--model", str(checkpoint), "--L-max", "64", "--memory", "1GiB"]


@pytest.mark.parametrize("name", BAD)
def test_plan_refuses_wrong_flags_with_a_hint(
    name: str, plan_flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = BAD[name]
    assert message in refused(capsys, *plan_flags, *words)


def test_plan_refuses_missing_and_unsupported_checkpoints(
    plan_flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "has no config.json" in refused(capsys, *plan_flags, "--model", tmp_path)
    model = checkpoints.make("llama", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    capsys.readouterr()  # transformers' progress
    line = refused(capsys, *plan_flags, "--model", model)
    assert "of a model_type 'gpt2' is not supported" in line


def test_plan_hint_names_a_memory_size_that_fits(
    plan_flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main([*plan_flags, "--memory", "50MB"]) == 2
    hint = capsys.readouterr().err.split("hint: ")[1]
    least = next(word for word in hint.split() if word.endswith("MiB"))
    assert app.main([*plan_flags, "--memory", least]) == 0


# Output.


def test_plan_json_bytes_add_up(plan_flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main([*plan_flags, "--json", "--batch", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = report["alternatives"]
    assert {row["batch"] for row in rows} == {2}
    assert [row["fits"] for row in rows] == [row["most_slots"] >= 2 for row in rows]
    best, counted = report["recommendation"], report["recommendation"]["bytes"]
    parts, peak = set(counted) - {"decode_resident", "prefill_peak"}, counted["prefill_peak"]
    assert sum(counted[part] for part in parts) == peak
    assert report["memory_bytes"] - best["left_bytes"] == best["peak_bytes"] > peak


def test_plan_prints_tables_and_ends_with_the_build_command(
    plan_flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(plan_flags) == 0
    out = capsys.readouterr().out
    assert "4 : 1, 16 *" in out and "single shot" in out and "peak: at most " in out
    one, many = (line for line in out.splitlines() if line.startswith("snapexport build --model "))
    assert "--batch 1 " in one and "--policy full" in one
    assert "--batch 201 " in many and out.endswith(f"{many}\n")


def test_plan_shows_no_row_above_the_memory(checkpoint: Path) -> None:
    made = make_plan(PlanRequest(84 * 2**20, {"model": str(checkpoint), "L_max": 1024}))
    rows = [(option, plan_command._batch(made, option)) for option in made.alternatives]
    assert all(option.at(batch).prefill_peak <= 84 * 2**20 for option, batch in rows if batch)
    assert {bool(batch) for _, batch in rows} == {True, False}
    assert made.for_one and made.for_one.batch == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "glm4_moe"])
def test_plan_counts_the_weights_of_a_decoder_by_the_model(name: str, tmp_path: Path) -> None:
    checkpoints.make(name, tmp_path / "m")  # other paths than `model.layers`
    given = {"L_max": 96, "policy": "full", "batch": 1, "target": "portable", "prefill_chunk": 32}
    built = build(tmp_path / "m", tmp_path / "b", **given)
    files = [built.directory / weights.file for weights in built.manifest.weights]
    stored = sum(span.nbytes for file in files for span in read_header(file).values())
    of_plan = BuildOptions.of(model=str(tmp_path / "m"), out=tmp_path, **given)
    assert stored_bytes(read_model(str(tmp_path / "m")), of_plan) == stored
