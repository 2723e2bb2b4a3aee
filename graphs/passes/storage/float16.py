"""Keys and values in fp16 beside a model in fp32. Attention over them is in fp16 too."""

import numpy as np
import onnx_graphsurgeon as gs

from snapexport.graphs.passes.base import fresh, node
from snapexport.graphs.passes.storage.base import Prompt, States, as_present, cast


class Float16:
    """Casts, and nothing else: what is above 65,504 becomes infinite."""

    def held(self, graph: gs.Graph, layer: int, states: States) -> States:
        return States(*(cast(graph, one, np.float16) for one in states))

    def attended(self, graph: gs.Graph, layer: int, states: States, out: gs.Tensor) -> gs.Tensor:
        half = gs.Variable(fresh(graph, "attended"))
        node(graph, "CastLike", [half, states.query], [out])
        return half

    def compressed(
        self, graph: gs.Graph, layer: int, prompt: Prompt, kept: list[gs.Variable]
    ) -> list[gs.Variable]:
        return as_present(layer, [cast(graph, one, np.float16) for one in kept])
