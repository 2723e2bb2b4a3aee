"""gpt-oss: a learned sink beside each head's scores, every other layer slides, experts."""

from snapexport.exporter.architectures.architecture import Architecture, Experts, RMSNorm

ARCHITECTURE = Architecture(
    name="GptOssForCausalLM",
    model_type="gpt_oss",
    slides="by layer_types",
    norm=RMSNorm(in_fp32=True),
    rope_by_pair=True,
    attention_sinks=True,
    experts=Experts(router=".router.weight", swapped=True),
    quantized=("mxfp4",),
)
