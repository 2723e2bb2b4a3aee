"""Qwen3-MoE: as Qwen3, with experts that a softmax chooses."""

from snapexport.exporter.architectures.architecture import Architecture, Experts

ARCHITECTURE = Architecture(
    name="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    slides="throughout",
    experts=Experts(dense="mlp_only_layers"),
    quantized=("fp8",),
)
