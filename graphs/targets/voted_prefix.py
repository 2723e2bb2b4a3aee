"""Gives votes only the keys up to the prompt's end, or to that of what is repeated after it.

A vote reads every position of a full-length cache, which for a short prompt is mostly padding. ONNX
Runtime takes tensors of a computed size. TensorRT does not, but its plugin stops at the prompt's
end.
"""

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from snapexport.contract.names import DOMAIN
from snapexport.graphs.passes.base import fresh, int64s, node, on_the_host

_POSITIONS = 2
"""The axis of positions in key [1,Hkv,T,D] and in votes [1,Hkv,T]."""


@dataclass(frozen=True)
class VotedPrefix:
    """Slices the keys of every vote in the graph."""

    def apply(self, graph: gs.Graph) -> None:
        for vote in _calls(graph, "SnapKVSelect"):
            _, key, prompt_length = vote.inputs
            (K,) = vote.attrs["K"]
            # TopK needs at least K positions.
            (end,) = node(graph, "Max", [prompt_length, int64s(graph, K)])
            _shorten(graph, [vote], key, on_the_host(graph, end))
        by_key: dict[str, list[gs.Node]] = {}
        for vote in _calls(graph, "RepetitionVotes"):
            by_key.setdefault(vote.inputs[1].name, []).append(vote)
        for votes in by_key.values():
            self._repetition(graph, votes)

    def _repetition(self, graph: gs.Graph, votes: list[gs.Node]) -> None:
        """Shorten the keys that several votes read, and fill up what comes out with zeros."""
        window, key, prompt_length = votes[-1].inputs
        rows, whole = votes[-1].attrs["first_row"] + window.shape[2], key.shape[_POSITIONS]
        (end,) = node(graph, "Add", [prompt_length, int64s(graph, rows)])
        (missing,) = node(graph, "Sub", [int64s(graph, whole), end])
        (pads,) = node(graph, "Concat", [int64s(graph, *[0] * 5), missing], axis=0)
        _shorten(graph, votes, key, on_the_host(graph, end))
        for vote in votes:
            (padded,) = vote.outputs
            vote.outputs = [gs.Variable(fresh(graph, "shorter"), padded.dtype)]
            node(graph, "Pad", [vote.outputs[0], on_the_host(graph, pads)], [padded])


def _calls(graph: gs.Graph, function: str) -> list[gs.Node]:
    return [one for one in graph.nodes if (one.domain, one.op) == (DOMAIN, function)]


def _shorten(graph: gs.Graph, votes: list[gs.Node], key: gs.Tensor, end: gs.Tensor) -> None:
    """Let the votes read keys up to `end`: sliced before a Concat, where latents are joined."""
    if key.inputs and key.inputs[0].op == "Concat":
        key.shape = None  # it is now as long as the prompt
        joined = key.inputs[0]
        for index, part in enumerate(joined.inputs):
            joined.inputs[index] = _sliced(graph, part, end)
        return
    shorter = _sliced(graph, key, end)
    for vote in votes:
        vote.inputs[1] = shorter


def _sliced(graph: gs.Graph, tensor: gs.Tensor, end: gs.Tensor) -> gs.Tensor:
    slices = [int64s(graph, 0), end, int64s(graph, _POSITIONS)]
    return node(graph, "Slice", [tensor, *slices])[0]
