"""Pairs tensors that share a buffer."""

from snapexport.contract import names
from snapexport.contract.manifest import MTP_PREFILL, GraphEntry, GraphName


def in_place(name: GraphName, graph: GraphEntry) -> dict[str, str]:
    """{present cache: the input whose buffer it has to share}.

    Empty for the compress graph, whose input and output caches differ in length; for extend, which
    moves what it keeps to other cache slots; and for mtp-prefill, which reads its input while it
    writes.
    """
    others = ("compress", "extend", MTP_PREFILL)
    inputs = {spec.name for spec in graph.inputs if name not in others}
    outputs = [spec.name for spec in graph.outputs if names.is_present(spec.name)]
    pairs = {present: names.past_of(present) for present in outputs}
    return {present: past for present, past in pairs.items() if past in inputs}
