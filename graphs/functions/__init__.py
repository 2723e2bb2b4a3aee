"""Our operators, as ONNX model-local functions whose bodies are standard operators.

The body is the definition. ONNX Runtime inlines it, and the build does so for targets without
functions (graphs/targets/inlined.py). TensorRT takes the body, or a plugin of the same name
(graphs/targets/votes.py). A pass that appends a call says which body the call needs
(`passes/base.call`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class Function:
    """An operator of our domain, and the text of the body that a graph's calls need.

    votes: it scores every position of a key. Its inputs are queries, key and prompt_length, and its
    output is positions, by an attribute K, or votes from the row `first_row` on.
    """

    name: str
    text: str
    votes: bool = False

    def proto(self) -> "onnx.FunctionProto":
        """The function as a model holds it."""
        import onnx

        return onnx.parser.parse_function(self.text)


EXPERTS = ("ExpertsGathered", "ExpertsInBlocks", "ExpertsInEveryBlock")
NAMES = (
    *("RingSlot", "RingFill", "QueryWindow", "SnapKVSelect", "SnapStreamGather"),
    *EXPERTS,
)
"""In the order in which a graph holds their bodies. Others come before the experts', as called."""
