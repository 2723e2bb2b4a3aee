"""Llama 2 and 3, and what shares their code."""

from snapexport.exporter.architectures.architecture import Architecture, InGguf

ARCHITECTURE = Architecture(
    name="LlamaForCausalLM",
    model_type="llama",
    gguf=InGguf(name="llama"),
)
