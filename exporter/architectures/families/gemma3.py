"""Gemma 3, its text models: as Gemma 2, with a RoPE for each type of layer."""

from snapexport.exporter.architectures.architecture import Architecture, InGguf, RMSNorm

ARCHITECTURE = Architecture(
    name="Gemma3ForCausalLM",
    model_type="gemma3_text",
    slides="by layer_types",
    rope_per_layer_type=True,
    norm=RMSNorm(epsilon="eps", weight_offset=1.0, in_fp32=True),
    scaled_embedding=True,
    score_softcap="attn_logit_softcapping",
    logit_softcap="final_logit_softcapping",
    # Files don't say how scores are scaled: for heads of 256 it is by 256 in all models.
    gguf=InGguf(name="gemma3", only={"attention.key_length": 256}),
)
