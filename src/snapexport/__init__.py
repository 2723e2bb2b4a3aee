"""snapexport: static-graph export of long-context LLMs with a KV cache that does not grow."""

__version__ = "0.1.0"
