"""DeepSeek-V3 and R1: latent attention, and experts that a sigmoid with a bias chooses by groups."""

from snapexport.exporter.architectures.architecture import Architecture

ARCHITECTURE = Architecture(
    name="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    latent=True,
)
