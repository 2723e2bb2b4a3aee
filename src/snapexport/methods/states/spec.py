"""Says which graphs take and give the recurrent states of hybrids."""

from snapexport.contract import names
from snapexport.contract.graph_specs import GraphFacts, Specs, Tensors, after
from snapexport.methods.method import Method

past_conv = names.numbered("past_key_values.", ".conv")
"""What a layer's convolution still reads of the positions before the step, [B,D,k-1]."""
past_matrix = names.numbered("past_key_values.", ".matrix")
"""The matrix state of a layer before the step, float32 [B,H,dk,dv]."""

_GRAPHS = "prefill", "extend", "decode"


def tensors(facts: GraphFacts, kind: str, common: Tensors) -> Tensors:
    """The states before and after; a single shot begins with none."""
    if kind not in _GRAPHS:
        return {}, {}
    rows, _ = common[0][names.INPUT_IDS][1]
    states: Specs = {}
    for index, sizes in facts.model.stateful.items():
        if sizes.conv:
            states[past_conv(index)] = (facts.dtype, (rows, *sizes.conv))
        if sizes.matrix:
            states[past_matrix(index)] = ("float32", (rows, *sizes.matrix))
    begins = kind == "prefill" and facts.build.single_shot
    return {} if begins else states, after(states)


STATES = Method(
    name="states",
    home=__package__,
    parts=("surgery",),
    is_on=lambda geometry, options: True,  # the model says so, layer by layer
    tensors=tensors,
)
