"""What the probe sees of a model's parts, and what it refuses."""

from typing import Any

import pytest
import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.youtu.modeling_youtu import YoutuAttention

from snapexport.errors import UserError
from snapexport.exporter.model import Decoder, ExpertForm, Rope
from snapexport.exporter.model.models import make_model
from snapexport.exporter.model.probe import look, names_of
from snapexport.exporter.model.probe.miniature import miniature, require_local
from snapexport.exporter.read.families import family_of
from tests.oracle.families import config_of

RECURRENT: dict[str, dict[str, Any]] = {
    "jamba": {"num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "minimax": {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
}


def seen(name: str, **changes: Any) -> Decoder:
    config = config_of(name, **changes)
    return look(config, family_of("", config.model_type))


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("mixtral", ExpertForm()),
        ("aria_text", ExpertForm(transposed=True)),
        ("minimax_m3_vl_text", ExpertForm(alpha=1.702, beta=1.0, limit=1.5)),
        ("llama4_text", ExpertForm(transposed=True, scaled_inputs=True)),
        ("gemma4_text.experts", ExpertForm(activation="gelu_tanh")),
        ("nemotron_h.experts", ExpertForm(activation="relu2", gated=False)),
    ],
)
def test_experts_are_seen_in_their_form(name: str, form: ExpertForm) -> None:
    assert seen(name).expert_form == form


@pytest.mark.parametrize(("hidden", "width"), [(256, 128), (128, 256), (180, 180), (96, 100)])
def test_experts_are_seen_whatever_their_width(hidden: int, width: int) -> None:
    sizes = {"hidden_size": hidden, "intermediate_size": width}
    assert seen("mixtral", **sizes, head_dim=16).expert_form == ExpertForm()


@pytest.mark.parametrize(
    ("name", "rope"),
    [
        ("glm4", Rope("halves", interleaved=True)),
        ("cohere2", Rope("steps", interleaved=True)),
        ("phi", Rope("halves", interleaved=False)),
        ("gemma4_text", Rope("halves", interleaved=False, takes="one")),
        ("llama4_text", Rope("pairs", interleaved=True, takes="complex")),
        ("minicpm3", Rope("halves", interleaved=False)),
        ("qwen3_5_text.narrow", Rope("halves", interleaved=False, of_text=True)),
        ("hunyuan_v1_dense.alpha", Rope("halves", interleaved=False)),
        ("hunyuan_v1_dense.dynamic", Rope("halves", interleaved=False)),
        ("kimi_linear", None),
        ("nanochat", None),
    ],
)
def test_rope_is_seen_in_its_form_or_left_as_it_is(name: str, rope: Rope | None) -> None:
    assert seen(name).rope == rope


def test_layers_that_get_other_angles_are_of_other_kinds() -> None:
    thetas = [10000.0, 500.0, 500.0, 10000.0]
    windows = ["full_attention"] * 4
    assert seen("granite_swa", layer_rope_theta=thetas, layer_types=windows).kinds == [0, 1, 1, 0]


def test_layers_with_inputs_of_their_own_are_traced_each() -> None:
    assert seen("gemma4_text").layers_read_their_own or len(set(seen("gemma4_text").kinds)) == 4


@pytest.mark.parametrize("name", RECURRENT)
def test_a_small_model_shows_positions_that_mix_outside_of_attention(name: str) -> None:
    """Whatever the layers' parts are called."""
    with torch.device("meta"):
        model = make_model(config_of(name, **RECURRENT[name]))
    names = names_of(model)
    inside = model.get_submodule(names.decoder)
    with pytest.raises(UserError, match=r"layer \d mixes positions outside of attention"):
        require_local(inside, names.layers.removeprefix(f"{names.decoder}."))


@pytest.mark.parametrize(
    ("name", "changes", "refused"),
    [
        ("recurrent_gemma", {}, r"layer 0 mixes positions by a recurrent state \(RecurrentGemma"),
        ("doge", {}, "layer 0 makes an attention mask of its own"),
        ("bloom", {"n_layer": 3, "n_head": 4}, r"layer 0 attends by code of its own \(Bloom"),
        ("diffllama", {}, "layer 0 attends 2 times"),
        ("bert", {"is_decoder": False}, r"a mask of another kind \(bidirectional\)"),
        ("roberta", {"is_decoder": True}, "the decoder counts positions in a way of its own"),
        (
            "jetmoe",
            {"kv_channels": 16},
            r"experts \(JetMoeParallelExperts\) compute a formula that",
        ),
    ],
)
def test_what_graphs_cannot_express_is_refused_by_what_was_seen(
    name: str, changes: dict[str, Any], refused: str
) -> None:
    with pytest.raises(UserError, match=refused):
        seen(name, **changes)


def test_a_model_whose_parts_are_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Qwen2ForCausalLM, "get_input_embeddings", lambda model: model.nowhere)
    with pytest.raises(UserError, match="has another form than decoders have: AttributeError"):
        seen("qwen2", hidden_size=48)


def test_latents_that_heads_read_in_another_way_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = YoutuAttention.expand_kv

    def doubled(attention: Any, *latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = usual(attention, *latents)
        return 2 * keys, values

    monkeypatch.setattr(YoutuAttention, "expand_kv", doubled)
    with pytest.raises(UserError, match=r"latent attention \(YoutuAttention\) has keys of another"):
        seen("youtu", kv_lora_rank=40)


def test_miniature_keeps_layers_kinds_and_groups_of_heads() -> None:
    large = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
    large |= {"num_key_value_heads": 8, "vocab_size": 128256, "num_hidden_layers": 32}
    small: Any = miniature(config_of("llama", **large))
    assert (small.num_hidden_layers, small.num_attention_heads) == (32, 4)
    assert (small.num_key_value_heads, small.hidden_size, small.vocab_size) == (2, 64, 257)
    with torch.device("meta"):
        assert sum(weight.numel() for weight in make_model(small).parameters()) < 1e6
