"""Gemma 2: sliding layers, soft-capped scores and logits, norms whose weights lie around zero."""

from snapexport.exporter.architectures.architecture import Architecture, InGguf, RMSNorm

ARCHITECTURE = Architecture(
    name="Gemma2ForCausalLM",
    model_type="gemma2",
    slides="by layer_types",
    norm=RMSNorm(epsilon="eps", weight_offset=1.0, in_fp32=True),
    scaled_embedding=True,
    score_softcap="attn_logit_softcapping",
    logit_softcap="final_logit_softcapping",
    # Files don't say how scores are scaled: for heads of 256 it is by 256 in all models.
    gguf=InGguf(name="gemma2", only={"attention.key_length": 256}),
)
