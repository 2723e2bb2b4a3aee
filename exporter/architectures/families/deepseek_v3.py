"""DeepSeek-V3 and R1: latent attention; a sigmoid with a bias chooses experts by groups."""

from snapexport.exporter.architectures.architecture import Architecture, Experts

ARCHITECTURE = Architecture(
    name="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    latent=True,
    mtp=True,
    experts=Experts(dense="first_k_dense_replace", grouped="always"),
    quantized=("fp8",),
)
