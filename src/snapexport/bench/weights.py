"""Counts what one pass over a build's weights reads and multiplies, from file headers alone.

Nothing is loaded. A tensor that lies in a file and that no graph uses would be counted too.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from snapexport.contract import safetensors
from snapexport.contract.build_directory import Build

_EMBEDDING, _OUTPUT = "embed_tokens.weight", "lm_head.weight"
_PACKED, _SCALES = ".int4", ".scales"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of a header."""

    name: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        """Factors of a matrix product: two to a byte where packed, none in norms and scales."""
        if self.name.endswith(_SCALES) or len(self.shape) < 2:
            return 0
        return math.prod(self.shape) * (2 if self.name.endswith(_PACKED) else 1)

    @property
    def is_output(self) -> bool:
        """Whether it makes logits: an own matrix, or the embedding's where they are tied."""
        return self.name.removesuffix(_PACKED).endswith((_EMBEDDING, _OUTPUT))


@dataclass(frozen=True, slots=True)
class Weights:
    """nbytes: of all the matrices and norms. elements: of the matrices, output: of the last one."""

    nbytes: int
    elements: int
    output: int

    @classmethod
    def of(cls, build: Build) -> "Weights":
        files = [build.directory / weights.file for weights in build.manifest.weights]
        return cls.counted(tensor for file in files for tensor in read_header(file))

    @classmethod
    def counted(cls, tensors: Iterable[Tensor]) -> "Weights":
        """Without what a step takes only some rows of, or a packed copy of."""
        named = {tensor.name: tensor for tensor in tensors}
        read = [tensor for tensor in named.values() if not _is_looked_up(tensor, named)]
        return cls(
            sum(tensor.nbytes for tensor in read),
            sum(tensor.elements for tensor in read),
            sum(tensor.elements for tensor in read if tensor.is_output),
        )


def _is_looked_up(tensor: Tensor, named: dict[str, Tensor]) -> bool:
    """An embedding beside an output matrix of its own, or the original of a packed tensor."""
    if tensor.name + _PACKED in named:
        return True
    outputs = any(name.removesuffix(_PACKED).endswith(_OUTPUT) for name in named)
    return outputs and tensor.name.endswith(_EMBEDDING)


def read_header(path: Path) -> list[Tensor]:
    """The tensors of a .safetensors file."""
    spans = safetensors.read_header(path)
    return [Tensor(name, span.shape, span.nbytes) for name, span in spans.items()]
