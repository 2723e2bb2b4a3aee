"""Keys and values in the model's own type."""

import onnx_graphsurgeon as gs

from snapexport.graphs.passes.storage.base import Prompt, States, as_present


class AsCalculated:
    """Nothing is changed."""

    def held(self, graph: gs.Graph, layer: int, states: States) -> States:
        return states

    def attended(self, graph: gs.Graph, layer: int, states: States, out: gs.Tensor) -> gs.Tensor:
        return out

    def compressed(
        self, graph: gs.Graph, layer: int, prompt: Prompt, kept: list[gs.Variable]
    ) -> list[gs.Variable]:
        return as_present(layer, kept)
