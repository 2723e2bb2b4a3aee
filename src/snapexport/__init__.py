"""snapexport: static-graph export of long-context LLMs with a KV cache that does not grow."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapexport.runtime.requests.llm import LLM
    from snapexport.runtime.requests.request import SamplingParams
    from snapexport.runtime.requests.structured_outputs import StructuredOutputs

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "StructuredOutputs", "__version__"]


def __getattr__(name: str) -> object:
    """Import the runtime only when it is asked for: exporting needs none of it."""
    if name == "LLM":
        from snapexport.runtime.requests.llm import LLM

        return LLM
    if name == "SamplingParams":
        from snapexport.runtime.requests.request import SamplingParams

        return SamplingParams
    if name == "StructuredOutputs":
        from snapexport.runtime.requests.structured_outputs import StructuredOutputs

        return StructuredOutputs
    raise AttributeError(f"module 'snapexport' has no attribute '{name}'")
