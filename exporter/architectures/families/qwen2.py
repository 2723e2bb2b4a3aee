"""Qwen2 and Qwen2.5: biases on queries, keys and values."""

from snapexport.exporter.architectures.architecture import Architecture, InGguf

ARCHITECTURE = Architecture(
    name="Qwen2ForCausalLM",
    model_type="qwen2",
    slides="by layer_types",
    gguf=InGguf(name="qwen2"),
)
