"""Mistral: every layer slides where a window is set. GGUF files call it Llama, without window."""

from snapexport.exporter.architectures.architecture import Architecture

ARCHITECTURE = Architecture(
    name="MistralForCausalLM",
    model_type="mistral",
    slides="throughout",
)
