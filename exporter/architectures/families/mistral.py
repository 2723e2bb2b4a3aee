"""Mistral: every layer slides where a window is set."""

from snapexport.exporter.architectures.architecture import Architecture

ARCHITECTURE = Architecture(
    name="MistralForCausalLM",
    model_type="mistral",
    slides="throughout",
)
