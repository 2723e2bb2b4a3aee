"""Qwen3: queries and keys are normed."""

from snapexport.exporter.architectures.architecture import Architecture, InGguf

ARCHITECTURE = Architecture(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    slides="by layer_types",
    gguf=InGguf(name="qwen3"),
    quantized=("fp8",),
)
