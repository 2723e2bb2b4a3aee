"""A model-local function: one of our operators, as ONNX text."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class Function:
    """An operator of our domain, and the text of the body that a graph's calls need."""

    name: str
    text: str

    def proto(self) -> "onnx.FunctionProto":
        """The function as a model holds it."""
        import onnx

        return onnx.parser.parse_function(self.text)
