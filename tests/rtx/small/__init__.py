"""Small graphs, sound and faulty, by theme."""

from collections.abc import Iterator

import onnx

from tests.rtx.small import attention, attention_sizes, caches, functions, operators, types

THEMES = (attention, attention_sizes, caches, operators, types, functions)


def graphs() -> Iterator[tuple[str, onnx.ModelProto]]:
    """(name, graph), in the order of the page."""
    for theme in THEMES:
        yield from theme.graphs()
