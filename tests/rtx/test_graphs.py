"""The real parser and builder accept every graph, as it lies on the disk."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import inliner

from snapexport.builder import BuildOptions
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.memory import composed_attention
from snapexport.files.dtypes import DType, of_tensorrt
from snapexport.graphs.functions import EXPERTS
from snapexport.methods.calibrated.measure import measure_mean_queries
from snapexport.methods.learned.scores import LearnedScores, Linear
from tests.builds import build
from tests.graphs import layered
from tests.oracle import cases, checkpoints, wholes
from tests.rtx import conftest
from tests.rtx.library import ask

SMALL: dict[str, Any] = conftest.SMALL | {"dtype": "bf16", "pool_kernel": 5}
SAGE = {"policy": "sage", "L_max": 64, "L_recent": 12, "K": 8, "prefill_chunk": 24}
FULL = {"policy": "full", "L_max": 64, "prefill_chunk": 24, "dtype": "bf16"}
STREAMING = FULL | {"policy": "streaming", "extend": True, "L_recent": 12, "dtype": "fp16"}
SPARSE = {"L_max": 128, "prefill_chunk": 16, "prefill_budget": 64}
SLIDING = {"L_max": 64, "prefill_chunk": 64, "dtype": "bf16"}
FULL_SEVERAL = FULL | {"tokens_per_step": 8}
REPEATED = {"vote_queries": "repeat", "L_max": 4096, "kv_budget": 512, "prefill_chunk": 256}
REPEATED |= {"dtype": "bf16"}
WHOLE = (FULL, FULL_SEVERAL, SAGE, STREAMING, SLIDING, REPEATED)
"""Options that stand alone; others change SMALL."""
LARGE = {"max_position_embeddings": 131072, "head_dim": 128}

REAL_QWEN: dict[str, Any] = {
    "num_hidden_layers": 3,
    "head_dim": 128,
    "num_attention_heads": 8,
    "hidden_size": 256,
    "moe_intermediate_size": 128,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "mlp_only_layers": [],
    "max_position_embeddings": 8192,
}
REAL_GPT_OSS: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 128,
    "head_dim": 64,
    "num_attention_heads": 16,
    "num_local_experts": 32,
    "max_position_embeddings": 8192,
}
REAL_LATENTS: dict[str, Any] = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

BUILDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: checkpoint, changes of its configuration, changes of SMALL
    "llama": ("llama", {}, {"baseline": True, "batch": 4, "decode_batches": (1, 2)}),
    "llama, extended": ("llama", {}, {"extend": True, "top_tokens": 16, "batch": 1}),
    "llama, several tokens a step": (
        "llama",
        {"head_dim": 128, "num_attention_heads": 8, "num_hidden_layers": 3},
        {"tokens_per_step": 4, "batch": 4, "extend": True, "top_tokens": 16},
    ),
    "gpt-oss, several tokens a step": ("gpt-oss", {}, {"tokens_per_step": 4, "batch": 2}),
    "deepseek-v3, several tokens a step": (
        "deepseek-v3",
        REAL_LATENTS,
        {"tokens_per_step": 4, "batch": 2},
    ),
    "llama, full, several tokens a step": ("llama", {}, FULL_SEVERAL),
    "llama, fp16": ("llama", {}, {"dtype": "fp16"}),
    "llama, weights of its own": ("llama-tied", {}, {"share_weights": False, "baseline": True}),
    "llama, capacities": ("llama", {}, {"L_max": 128, "prefill_capacities": (32, 64)}),
    "llama, sparse prefill": ("llama", {}, SPARSE),
    "gpt-oss, sparse prefill": ("gpt-oss", {}, SPARSE | {"prefill_capacities": (32,)}),
    "gemma3, sparse prefill": ("gemma3", {}, SPARSE),
    "llama, fp32": ("llama", {}, {"dtype": "fp32", "baseline": True}),
    "llama, yarn, single shot": ("llama-yarn", {}, {"prefill_chunk": 64}),
    "llama, tied, top tokens": ("llama-tied", {}, {"top_tokens": 16}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1}, {"pool": "max", "group": "max"}),
    "llama, repeated prompt": ("llama", LARGE | {"num_hidden_layers": 3}, REPEATED),
    "deepseek-v3, repeated prompt": ("deepseek-v3", REAL_LATENTS, REPEATED | {"L_max": 1024}),
    "llama, full": ("llama", {}, FULL),
    "llama, streaming": ("llama", {}, STREAMING),
    "llama, heads of 64": ("llama", {"head_dim": 64}, {}),
    "llama, heads of 256": ("llama", {"head_dim": 256}, {}),
    "llama, heads of 12": ("llama", {"head_dim": 12}, {}),
    "llama, heads of 20": ("llama", {"head_dim": 20}, {"baseline": True}),
    "llama, heads of 36": ("llama", {"head_dim": 36}, {}),
    "mistral, snapkv": ("mistral", {}, {"policy": "snapkv", "pool_kernel": 7}),
    "qwen2, sage": ("qwen2", {}, SAGE),
    "qwen3, SnapStream's own votes": ("qwen3", {}, {"softmax": "candidates", "vote": "sum"}),
    "qwen3, pyramid": ("qwen3", {}, {"budget": "pyramid", "extend": True}),
    "qwen3, sliding layers": ("qwen3-sliding", {}, {}),
    "qwen3-moe, one batch slot": ("qwen3-moe", {}, {"batch": 1, "baseline": True}),
    "qwen3-moe, blocks of experts": ("qwen3-moe", {}, {"batch": 4, "prefill_chunk": 64}),
    "mistral, sliding layers": ("mistral-sliding", {}, SLIDING),
    "gemma2, soft caps": ("gemma2", {}, {"baseline": True}),
    "gemma3, sliding layers": ("gemma3", {}, {"baseline": True, "extend": True}),
    "gemma3, single shot": ("gemma3", {}, {"prefill_chunk": 64}),
    "qwen3-moe, real heads": ("qwen3-moe", REAL_QWEN, {"L_max": 4096, "prefill_chunk": 128}),
    "gpt-oss, real heads": (
        "gpt-oss",
        REAL_GPT_OSS,
        {"L_max": 4096, "prefill_chunk": 256, "extend": True},
    ),
    "deepseek-v3, real heads": (
        "deepseek-v3",
        REAL_LATENTS,
        {"L_max": 512, "prefill_chunk": 256, "extend": True},
    ),
    "deepseek-v2, single shot": ("deepseek-v2", {}, {"prefill_chunk": 64}),
    "deepseek-v3, latents": ("deepseek-v3", {}, {"baseline": True, "batch": 4}),
    "deepseek-v3, drafts": ("deepseek-v3", {"mtp": True}, {"mtp": True, "batch": 4}),
    "gpt-oss": ("gpt-oss", {}, {"baseline": True}),
    "qwen3_5, extended": ("qwen3_5_text", {}, {"extend": True}),
    "falcon_h1, extended": ("falcon_h1", {}, {"extend": True, "prefill_chunk": 64}),
    "gpt-oss, single shot": ("gpt-oss", {}, {"prefill_chunk": 64, "dtype": "fp16"}),
    "gpt-oss, fp32": ("gpt-oss", {}, {"dtype": "fp32"}),
    "llama, K of 30,000": ("llama", LARGE, {"L_max": 32768, "K": 30000, "prefill_chunk": 64}),
    "llama, 131,072 tokens": (
        "llama",
        LARGE,
        {"L_max": 131072, "K": 4000, "baseline": True, "prefill_chunk": 128},
    ),
}


FAMILIES = (
    *("afmoe", "apertus", "cohere2_moe", "gemma4_text.heads", "glm4", "gpt2", "granite_swa"),
    *("mimo_v2_flash", "minicpm3", "nanochat", "opt", "smollm3"),
    *("gpt2.scaled", "hunyuan_v1_dense.alpha", "qwen3_5_text.narrow"),
)
BUILDS |= {f"{name} in its usual form": (name, {}, {}) for name in FAMILIES}


def accepted_graphs(made: Build, softcapped: bool) -> None:
    """Assert that the library takes each graph, with the manifest's tensors and as many layers."""
    for name, entry in made.manifest.graphs.items():
        answer = ask(made.graph(name))
        assert answer.accepted, f"{name}: {answer.errors}"
        for tensors, specs in ((answer.inputs, entry.inputs), (answer.outputs, entry.outputs)):
            found = [(key, of_tensorrt(kind), shape) for key, kind, shape in tensors]
            assert sorted(found) == sorted((s.name, s.dtype, list(s.shape)) for s in specs), name
        operators = Counter(node.op_type for node in load(made, name).graph.node)
        assert answer.layers.get("ATTENTION_INPUT", 0) == operators["Attention"], name
        assert answer.layers.get("DIST_COLLECTIVE", 0) == operators["DistCollective"], name
        # The router of the layer for multi-token prediction is a sigmoid.
        routers = 0 if name == "mtp" else sum(operators[form] for form in EXPERTS)
        is_composed = name not in ("compress", "vote") and operators["Softmax"] > routers
        if not softcapped:
            assert (name in composed_attention(made.manifest)) is is_composed, name
        pasts = (spec.name for spec in entry.inputs if names.is_past(spec.name))
        caches = sum(not (names.is_state(n) or n.startswith("past_votes.")) for n in pasts)
        kind = graph_of(name).kind
        written = caches if kind.writes_in_place and name != "vote" else 0
        assert answer.layers.get("KV_CACHE_UPDATE", 0) == written, name


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("name", layered.MODELS)
def test_the_real_builder_accepts_layers_with_heads_of_their_own(
    name: str, dtype: DType, tmp_path: Path
) -> None:
    model, sizes = layered.MODELS[name], {"L_sink": 2, "L_recent": 12, "K": 10, "L_obs": 4}
    steps = {"tokens_per_step": 4} if dtype == "fp16" else {}
    given = {"model": "", "out": tmp_path, "L_max": 64, **sizes, **steps}
    geometry = BuildOptions.of(**given).geometry(model.facts)
    options: dict[str, Any] = {"extend": True, "baseline": not steps, "dtype": dtype}
    made = layered.build(model, geometry, tmp_path / "b", target="tensorrt-rtx", **options)
    accepted_graphs(made, softcapped=model.layers[0].softcap > 0)


def load(made: Build, name: str) -> onnx.ModelProto:
    return onnx.load(made.graph(name), load_external_data=False)


@pytest.mark.parametrize("name", BUILDS)
def test_the_real_builder_accepts_every_graph(name: str, tmp_path: Path) -> None:
    architecture, changes, options = BUILDS[name]
    model = checkpoints.make(architecture, tmp_path / "model", **changes)
    chosen = options if options in WHOLE or "vote_queries" in options else SMALL | options
    made = build(model, tmp_path / "b", target="tensorrt-rtx", **chosen)
    accepted_graphs(made, softcapped=architecture == "gemma2")


@pytest.mark.parametrize("kind", ["idefics3", "smolvlm"])
def test_the_real_builder_accepts_the_text_part_of_a_vision_language_model(
    kind: str, tmp_path: Path
) -> None:
    wholes.make(kind, tmp_path / "m")
    made = build(tmp_path / "m", tmp_path / "b", target="tensorrt-rtx", **SMALL)
    accepted_graphs(made, softcapped=False)


@pytest.mark.parametrize("name", ["llama", "glm4", "smollm3"])
def test_the_real_builder_accepts_the_vote_of_a_mean_query(name: str, tmp_path: Path) -> None:
    model = checkpoints.make(name, tmp_path / "model")
    plain = build(model, tmp_path / "plain", **conftest.SMALL, baseline=True)
    file = tmp_path / "queries.json"
    file.write_text(measure_mean_queries(plain, [cases.prompt(40)], lambda: None).text({}))
    options = SMALL | {
        "L_obs": None,
        "mean_queries": file,
        "extend": True,
        "target": "tensorrt-rtx",
    }
    accepted_graphs(build(model, tmp_path / "b", **options), softcapped=False)


@pytest.mark.parametrize(
    "options",
    [{"vote_queries": "both"}, {"vote_queries": "learned", "prefill_chunk": 64}, {"extend": True}],
    ids=str,
)
def test_the_real_builder_accepts_learned_scores(options: dict[str, Any], tmp_path: Path) -> None:
    """Of one layer and of two; in chunks, in a single shot, and kept beside cached positions."""
    model = checkpoints.make("llama", tmp_path / "model")
    width = json.loads((model / "config.json").read_text())["hidden_size"]
    linear = Linear(np.ones((2, width), np.float32), np.ones(2, np.float32))
    layers = {0: (linear,), 1: (linear, Linear(np.ones((2, 2), np.float32), linear.bias))}
    (file := tmp_path / "scores.safetensors").write_bytes(LearnedScores(layers).content())
    given = SMALL | {"L_obs": None, "scores": file, "target": "tensorrt-rtx"} | options
    accepted_graphs(build(model, tmp_path / "b", **given), softcapped=False)


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_a_graph_gives_the_layers_of_its_inlined_form(
    target: str, checkpoint: Path, tmp_path: Path
) -> None:
    made = build(checkpoint, tmp_path / "b", target=target, **SMALL)
    for name in ("compress", "decode", "prefill"):
        path = made.directory / "inlined.onnx"
        onnx.save(inliner.inline_local_functions(load(made, name)), path)
        as_it_lies, inlined = (ask(graph, ()) for graph in (made.graph(name), path))
        assert as_it_lies.layers and as_it_lies.layers == inlined.layers


GEOMETRY = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
SCRATCH: dict[str, float] = {
    "prefill": 0.72e9,
    "compress": 0.25e9,
    "extend": 0.15e9,
    "decode": 0.01e9,
    "baseline-decode": 0.6e9,
}
"""Bounds in bytes at 131,072 positions, 32/8 heads of 128, chunks of 512, one batch slot."""


def test_scratch_memory_of_llama_8b_heads_at_131072_positions_is_below_its_bounds(
    tmp_path: Path,
) -> None:
    small = {"hidden_size": 64, "intermediate_size": 64, "max_position_embeddings": 131072}
    model = checkpoints.make("llama", tmp_path / "model", **GEOMETRY | small)
    options: dict[str, Any] = {"L_max": 131072, "kv_budget": 8192, "prefill_chunk": 512}
    options |= {"dtype": "bf16", "baseline": True, "batch": 1, "extend": True}
    made = build(model, tmp_path / "b", target="tensorrt-rtx", **options)
    for name, bound in SCRATCH.items():
        answer = ask(made.graph(name), ("8.9",))
        assert answer.accepted, (name, answer.errors)
        assert answer.scratch is not None and answer.scratch <= bound, (name, answer.scratch)


def test_scratch_memory_does_not_grow_with_the_layers(tmp_path: Path) -> None:
    scratch = {}
    for layers in (2, 6):
        model = checkpoints.make(
            "llama", tmp_path / f"model{layers}", num_hidden_layers=layers, **LARGE
        )
        options = SMALL | {"L_max": 16384, "K": 1000, "prefill_chunk": 64}
        made = build(model, tmp_path / f"b{layers}", target="tensorrt-rtx", **options)
        scratch[layers] = {name: ask(made.graph(name), ("8.9",)).scratch for name in LAYERED}
    # Some products take a workspace of 8 MB.
    assert all(scratch[6][n] < scratch[2][n] + 10e6 for n in LAYERED), scratch


LAYERED = ("prefill", "compress", "decode")


@pytest.mark.parametrize(("tied", "shares"), [(False, True), (True, False), (True, True)])
def test_no_graph_copies_its_weights(tied: bool, shares: bool, tmp_path: Path) -> None:
    """A copy of the head [V,E] would be 67 MB of scratch memory."""
    large = {"vocab_size": 65536, "hidden_size": 512, "tie_word_embeddings": tied}
    model = checkpoints.make("llama", tmp_path / "model", **large)
    options = SMALL | {"share_weights": shares, "batch": 4}
    made = build(model, tmp_path / "b", target="tensorrt-rtx", **options)
    for name in ("prefill", "decode"):
        scratch = ask(made.graph(name), ("8.9",)).scratch
        assert scratch is not None and scratch < 40e6, (name, scratch)
