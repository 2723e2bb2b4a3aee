"""Pairs tensors that share a buffer."""

from snapexport.contract import names
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.manifest import GraphEntry, GraphName


def in_place(name: GraphName, graph: GraphEntry) -> dict[str, str]:
    """{present cache: the input whose buffer it has to share}."""
    if not graph_of(name).kind.writes_in_place:
        return {}
    inputs = {spec.name for spec in graph.inputs}
    outputs = [spec.name for spec in graph.outputs if names.is_present(spec.name)]
    pairs = {present: names.past_of(present) for present in outputs}
    return {present: past for present, past in pairs.items() if past in inputs}
