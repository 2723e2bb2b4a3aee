"""Gemma 3, its text models: as Gemma 2, with a RoPE for each type of layer."""

from snapexport.exporter.architectures.architecture import Architecture, InGguf, RMSNorm

_ONLY = {
    # Files don't say how scores are scaled: for heads of 256 it is by 256 in all models.
    "attention.key_length": 256,
    "attention.sliding_window_pattern": 6,
    "rope.freq_base_swa": 10000.0,
}

ARCHITECTURE = Architecture(
    name="Gemma3ForCausalLM",
    model_type="gemma3_text",
    slides="by layer_types",
    rope_per_layer_type=True,
    norm=RMSNorm(epsilon="eps", weight_offset=1.0, in_fp32=True),
    scaled_embedding=True,
    score_softcap="attn_logit_softcapping",
    logit_softcap="final_logit_softcapping",
    gguf=InGguf(name="gemma3", only=_ONLY),
)
