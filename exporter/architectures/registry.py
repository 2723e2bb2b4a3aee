"""The records of the verified architectures."""

from typing import TYPE_CHECKING

from snapexport.exporter.architectures.architecture import (
    Architecture,
    Experts,
    InGguf,
    RMSNorm,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_GEMMA3_ONLY = {
    # Files don't say how scores are scaled: for heads of 256 it is by 256 in all models.
    "attention.key_length": 256,
    "attention.sliding_window_pattern": 6,
    "rope.freq_base_swa": 10000.0,
}

_RECORDS = (
    # DeepSeek-V2 and V2-Lite: latent attention; a softmax chooses experts.
    Architecture(
        name="DeepseekV2ForCausalLM",
        model_type="deepseek_v2",
        latent=True,
        experts=Experts(dense="first_k_dense_replace", grouped="by topk_method"),
    ),
    # DeepSeek-V3 and R1: latent attention; a sigmoid with a bias chooses experts by groups.
    Architecture(
        name="DeepseekV3ForCausalLM",
        model_type="deepseek_v3",
        latent=True,
        mtp=True,
        experts=Experts(dense="first_k_dense_replace", grouped="always"),
        quantized=("fp8",),
    ),
    # Gemma 2: sliding layers, soft-capped scores and logits, norms whose weights lie around zero.
    Architecture(
        name="Gemma2ForCausalLM",
        model_type="gemma2",
        slides="by layer_types",
        norm=RMSNorm(epsilon="eps", weight_offset=1.0, in_fp32=True),
        scaled_embedding=True,
        score_softcap="attn_logit_softcapping",
        logit_softcap="final_logit_softcapping",
        # Files don't say how scores are scaled: for heads of 256 it is by 256 in all models.
        gguf=InGguf(name="gemma2", only={"attention.key_length": 256}),
    ),
    # Gemma 3, its text models: as Gemma 2, with a RoPE for each type of layer.
    Architecture(
        name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        slides="by layer_types",
        rope_per_layer_type=True,
        norm=RMSNorm(epsilon="eps", weight_offset=1.0, in_fp32=True),
        scaled_embedding=True,
        score_softcap="attn_logit_softcapping",
        logit_softcap="final_logit_softcapping",
        gguf=InGguf(name="gemma3", only=_GEMMA3_ONLY),
    ),
    # gpt-oss: a learned sink beside each head's scores, every other layer slides, experts.
    Architecture(
        name="GptOssForCausalLM",
        model_type="gpt_oss",
        slides="by layer_types",
        norm=RMSNorm(in_fp32=True),
        rope_by_pair=True,
        attention_sinks=True,
        experts=Experts(router=".router.weight", swapped=True),
        quantized=("mxfp4",),
    ),
    # Llama 2 and 3, and what shares their code.
    Architecture(
        name="LlamaForCausalLM",
        model_type="llama",
        gguf=InGguf(name="llama"),
    ),
    # Mistral: every layer slides where a window is set. GGUF files call it Llama, without window.
    Architecture(
        name="MistralForCausalLM",
        model_type="mistral",
        slides="throughout",
    ),
    # Qwen2 and Qwen2.5: biases on queries, keys and values.
    Architecture(
        name="Qwen2ForCausalLM",
        model_type="qwen2",
        slides="by layer_types",
        gguf=InGguf(name="qwen2"),
    ),
    # Qwen3: queries and keys are normed.
    Architecture(
        name="Qwen3ForCausalLM",
        model_type="qwen3",
        slides="by layer_types",
        gguf=InGguf(name="qwen3"),
        quantized=("fp8",),
    ),
    # Qwen3-MoE: as Qwen3, with experts that a softmax chooses.
    Architecture(
        name="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        slides="throughout",
        experts=Experts(dense="mlp_only_layers"),
        quantized=("fp8",),
    ),
)
VERIFIED = {record.name: record for record in _RECORDS}
"""Class in config.json -> record. Tests compare each one's logits, greedy tokens and kept positions
with transformers."""


def register(architecture: Architecture) -> None:
    """Add a record, or replace the one of the same name."""
    VERIFIED[architecture.name] = architecture


def architecture_of(config: "PretrainedConfig") -> Architecture:
    """The record for a config that `load_config` accepted."""
    return next(arch for arch in VERIFIED.values() if arch.model_type == config.model_type)
