"""The kinds of hostile input, by name, and how many cases a full run has of each."""

from pathlib import Path

from tests.fuzz.children import Kind

COUNTS = {
    "manifests": 2000,
    "graphs": 1000,
    "headers": 1000,
    "gguf": 1500,
    "configs": 2000,
    "tokenizers": 600,
    "templates": 600,
}


def make(name: str, work: Path) -> Kind:
    """Import the kind's libraries, and read what it mutates."""
    from tests.fuzz import configs, gguf_headers, graphs, headers, manifests, texts

    kinds = (
        manifests.Manifests,
        graphs.Graphs,
        headers.Headers,
        gguf_headers.GgufHeaders,
        configs.Configs,
        texts.Tokenizers,
        texts.Templates,
    )
    return {kind.name: kind for kind in kinds}[name](work)
