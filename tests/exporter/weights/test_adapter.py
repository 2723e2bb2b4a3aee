"""Merged weights give the logits of peft's own forward pass, and what is not merged is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from snapexport.errors import UserError
from snapexport.exporter.model import ranks
from snapexport.exporter.model.models import make_model
from snapexport.exporter.model.probe import load_decoder
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.read.adapter import open_adapter
from snapexport.exporter.weights.adapted import Merged
from snapexport.exporter.weights.adapter import Opened, with_adapter
from snapexport.exporter.weights.forms.integers import IntegerWeight
from snapexport.exporter.weights.tensor_file import Tensor, blocks
from tests.exporter import gguf_files
from tests.exporter.weights.test_conversion import whole
from tests.oracle import checkpoints

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LINEAR = ["q_proj", "v_proj", "down_proj"]
BOTH = ["embed_tokens", "lm_head"]
STACKS = ["experts.gate_up_proj", "experts.down_proj"]
RANKS: dict[str, Any] = {
    "rank_pattern": {"layers.1.self_attn.q_proj": 7, "^model.layers.0.mlp.down_proj": 3},
    "alpha_pattern": {"down_proj": 5},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ranks": ("llama", RANKS | {"use_rslora": True, "modules_to_save": ["lm_head", "norm"]}),
    "dora": ("llama", {"use_dora": True, "target_modules": [*LINEAR, *BOTH]}),
    "biases": ("qwen2", {"bias": "all", "lora_bias": True, "target_modules": ["q_proj"]}),
    "embedding": ("gemma2", {"target_modules": ["embed_tokens", "q_proj"]}),
    "head": ("gemma2", {"target_modules": ["lm_head", "q_proj"]}),
    "saved": ("llama-tied", {"modules_to_save": ["lm_head"]}),
    "tied": ("gemma2", {"target_modules": BOTH, "ensure_weight_tying": True}),
    "Conv1D": ("gpt2", {"target_modules": ["c_attn", "c_fc"], "use_dora": True}),
    "fused": ("phi3", {"target_modules": "all-linear"}),
    "experts": ("mixtral", {"target_parameters": STACKS, "alpha_pattern": {STACKS[1]: 13}}),
    "turned": ("gpt-oss", {"target_parameters": STACKS}),
    "router": ("mixtral", {"target_modules": [], "target_parameters": ["gate.weight"]}),
}
FEW = ("ranks", "embedding", "Conv1D", "experts")
Change = Callable[[dict[str, Any], dict[str, np.ndarray]], object]


def by_peft(base: Path, folder: Path, saved: dict[str, Any], **config: Any) -> Any:
    """Save a random adapter, and return peft's model with it. saved: how."""
    peft = pytest.importorskip("peft")
    made = peft.LoraConfig(**{"task_type": "CAUSAL_LM", "target_modules": LINEAR, "r": 4} | config)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), made)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, one in model.named_parameters():
            noise = torch.randn(one.shape, generator=generator)
            if "magnitude" in name:
                one.mul_(1 + 0.2 * noise)
            elif one.requires_grad:
                one.copy_(0.2 * noise)
    model.save_pretrained(folder, **saved)
    return peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).eval()


def opened(base: Path, folder: Path) -> Opened:
    checkpoint = open_checkpoint(base)
    adapter = open_adapter(str(folder))
    return with_adapter(checkpoint, load_decoder(checkpoint), adapter, load_decoder)


@pytest.mark.parametrize(
    "name", [one if one in FEW else pytest.param(one, marks=pytest.mark.slow) for one in CASES]
)
def test_merged_weights_give_the_logits_of_peft(name: str, tmp_path: Path) -> None:
    """Not of its merge_and_unload, which changes both weights of a tie, and some twice."""
    family, config = CASES[name]
    base = checkpoints.make(family, tmp_path / "base")
    saved = {"save_embedding_layers": True} if name == "ranks" else {}
    peft = by_peft(base, tmp_path / "adapter", saved, **config)
    tokens = torch.arange(3, 30)[None]
    with torch.no_grad():
        expected = peft(input_ids=tokens).logits
    found = opened(base, tmp_path / "adapter")
    tied = found.decoder.names.tied
    assert found.unties == (name in ("embedding", "head", "saved"))
    model = make_model(found.decoder.config, dtype=torch.float32).eval()
    tensors = found.checkpoint.tensors
    state = {n: torch.tensor(whole(tensors[tied.get(n, n)])) for n in model.state_dict()}
    model.load_state_dict(state)
    with torch.no_grad():
        assert (model(input_ids=tokens).logits - expected).abs().max() < 5e-4 * expected.std()
    if not tied and not found.unties:
        for n, one in peft.merge_and_unload().state_dict().items():
            assert torch.allclose(state[n], one, rtol=0, atol=2e-6), n


def by_hand(
    base: Path, folder: Path, modules: dict[str, tuple[int, int]], **config: Any
) -> dict[str, np.ndarray]:
    """An adapter of rank 2 for modules of these shapes, without peft, and its products."""
    rng, tensors, products = np.random.default_rng(0), {}, {}
    for name, (rows, columns) in modules.items():
        a, b = rng.normal(size=(2, columns)), rng.normal(size=(rows, 2))
        tensors[f"base_model.model.{name}.lora_A.weight"] = a.astype(np.float32)
        tensors[f"base_model.model.{name}.lora_B.weight"] = b.astype(np.float32)
        products[name] = (b @ a * 8 / 2).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / WEIGHTS)
    written = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "base_model_name_or_path": "o/base"}
    (folder / CONFIG).write_text(json.dumps(written | config))
    return products


def test_single_experts_of_an_older_adapter_change_the_stack(tmp_path: Path) -> None:
    base = checkpoints.make("mixtral", tmp_path / "base")
    name = "model.layers.0.block_sparse_moe.experts.3.w3"
    plain = open_checkpoint(base).tensors
    (product,) = by_hand(base, tmp_path / "a", {name: plain[f"{name}.weight"].shape}).values()
    found = opened(base, tmp_path / "a")
    (place,) = found.changed
    assert place == "model.layers.0.mlp.experts.gate_up_proj"
    stack, rows = whole(found.checkpoint.tensors[place]), len(product)
    expected = whole(plain[f"{name}.weight"]) + product
    assert np.allclose(stack[3, rows:], expected, atol=1e-5)
    assert np.array_equal(stack[2, rows:], whole(plain[f"{name.replace('3.w', '2.w')}.weight"]))


def test_merging_goes_row_by_row_and_ranks_have_their_rows(
    checkpoint: Path, tmp_path: Path
) -> None:
    name = "model.layers.1.mlp.up_proj"
    (product,) = by_hand(checkpoint, tmp_path / "a", {name: (112, 64)}).values()
    merged: Tensor = opened(checkpoint, tmp_path / "a").checkpoint.tensors[f"{name}.weight"]
    assert isinstance(merged, Merged)
    expected = whole(merged.stored) + product
    few = list(blocks(merged, 64, 640))
    assert len(few) > 10
    assert np.allclose(np.concatenate(few).reshape(112, 64), expected, atol=1e-5)
    parts = [whole(ranks.cut(merged, 0, ranks.Share(rank, 2))) for rank in range(2)]
    assert np.allclose(np.concatenate(parts), expected, atol=1e-5)


def test_a_matrix_of_integers_is_dequantized_where_it_is_changed(tmp_path: Path) -> None:
    base = gguf_files.make("llama", tmp_path, Kind.Q8_0)
    plain = open_checkpoint(base).tensors
    name = "model.layers.0.self_attn.q_proj"
    (product,) = by_hand(base, tmp_path / "a", {name: plain[f"{name}.weight"].shape}).values()
    found = opened(base, tmp_path / "a")
    merged = whole(found.checkpoint.tensors[f"{name}.weight"])
    assert np.allclose(merged, whole(plain[f"{name}.weight"]) + product, atol=1e-5)
    integers = sum(isinstance(one, IntegerWeight) for one in plain.values())
    assert len(found.integers) == integers - 1
    (tmp_path / "a/chat_template.jinja").write_text("x")
    note, template = found.notes("o/base", keeps=True)
    assert "becomes floats: 1 of the checkpoint's matrices" in note
    assert template.startswith("not used: ")
    assert found.notes("other", keeps=False)[0] == "the adapter was trained on o/base"


def test_an_adapter_of_the_hub_is_downloaded(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand(checkpoint, tmp_path / "a", {"layers.1.mlp.up_proj": (112, 64)})
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *_, **k: asked.update(k) or str(tmp_path / "a")
    )
    assert open_adapter("owner/tuned").name == "owner/tuned"
    assert asked == {"allow_patterns": [CONFIG, WEIGHTS]}
    # Trained on the decoder without its head: peft's names lack a prefix.
    assert opened(checkpoint, tmp_path / "a").places == {"model.layers.1.mlp.up_proj.weight"}


def _rename(tensors: dict[str, np.ndarray], old: str, new: str) -> None:
    for name in [name for name in tensors if old in name]:
        tensors[name.replace(old, new)] = tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c, _: c.update(peft_type="IA3"), "of the kind IA3"),
        (lambda c, _: c.update(peft_type="PREFIX_TUNING"), "adds tokens or layers"),
        (lambda c, _: c.update(peft_type=None, fine_tune_type="lora"), "adapter of MLX"),
        (lambda c, _: c.update(init_lora_weights="pissa_niter_4"), "path_initial_model_for"),
        (lambda c, _: c.update(layer_replication=[[0, 2]]), "'layer_replication' [[0, 2]]"),
        (lambda c, _: c.update(alora_invocation_tokens=[5]), "depends on the text"),
        (lambda c, _: c.update(new_option=3), "the unknown key 'new_option' 3"),
        (lambda c, _: c.update(r=4), "says rank 4 for model.layers.0.self_attn.q_proj"),
        (lambda c, _: c.update(rank_pattern={"(": 3}), "a pattern '('"),
        (lambda c, _: c.update(lora_alpha="8"), "lora_alpha has no such value"),
        (lambda c, _: c.update(use_dora=True), "lacks lora_magnitude_vector"),
        (lambda _, t: t.popitem(), "lacks lora_"),
        (lambda _, t: _rename(t, "lora_A", "lora_A.default"), "is not one of peft's"),
        (lambda _, t: _rename(t, "layers.0", "layers.9"), "trained on o/base"),
        (lambda _, t: _rename(t, "q_proj", "k_proj"), "of shape [64, 64], the model's is [32, 64]"),
        (lambda _, t: t.update(score=np.ones((2, 64), np.float32)), "changes score, which"),
        (
            lambda _, t: t.update({"lm_head.weight": np.ones((260, 64), np.float32)}),
            "resize_token_embeddings(260)",
        ),
        (
            lambda _, t: t.update(
                {n.replace("A.weight", "B.bias"): np.ones(64, np.float32) for n in t if "_A" in n}
            ),
            "train it without lora_bias",
        ),
        (lambda _, t: t.clear(), "has no tensors"),
        (
            lambda _, t: t.update(
                {name: one[:, :1] for name, one in t.items() if "lora_B" in name}
            ),
            "don't fit together",
        ),
    ],
)
def test_what_is_not_merged_is_refused(
    change: Change, words: str, checkpoint: Path, tmp_path: Path
) -> None:
    by_hand(checkpoint, folder := tmp_path / "a", {"model.layers.0.self_attn.q_proj": (64, 64)})
    config, tensors = json.loads((folder / CONFIG).read_text()), load_file(folder / WEIGHTS)
    change(config, tensors)
    (folder / CONFIG).write_text(json.dumps(config))
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(UserError) as error:
        opened(checkpoint, folder)
    assert words in f"{error.value.message} {error.value.hint}"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "with adapter_config.json"),
        ([CONFIG], "with adapter_model.safetensors"),
        ([CONFIG, "adapter_model.bin"], "save it again"),
        (["config.json", "model.safetensors"], "build it without --adapter"),
        ([f"checkpoint-5/{CONFIG}"], "checkpoint-5"),
        ([CONFIG, "adapters.safetensors"], "mlx_lm.fuse"),
    ],
)
def test_the_refusal_of_another_folder_says_what_it_is(
    files: list[str], words: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError) as error:
        open_adapter(str(tmp_path))
    assert words in f"{error.value.message} {error.value.hint}"
