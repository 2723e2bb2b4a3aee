"""Counts what a build takes in memory on a CPU backend, before it is loaded.

Weights and caches follow from files and shapes. What libraries hold beside them is measured
(`tests/memory`), and rounded up. Reads config.json, and no graph.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.manifest import GraphName, Manifest
from snapexport.contract.memory import (
    FP32_BYTES,
    scores_bytes,
    tensor_bytes,
    total_bytes,
    vote_scores_bytes,
    weights_bytes,
)
from snapexport.contract.model_facts import LayerHeads
from snapexport.errors import UserError
from snapexport.files.tokenizer_file import TOKENIZER
from snapexport.files.untrusted import MANIFEST_BYTES, read_bytes
from snapexport.serving.memory.parts import Part

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Held:
    """A library's memory beside the caches; bytes, or factors of the weights' bytes.

    library: with the server's own modules. copies: of the weights in each graph that has some.
    copies_of_integers: the same for weights of few bits, as bytes of a weight. graph: of the file
    of each graph. work: of a layer's tensors. layers_at_once: whether the vote's work of all layers
    is alive at once.
    """

    library: int
    copies: float
    copies_of_integers: float
    graph: int = 24
    work: int = 2
    layers_at_once: bool = False


HELD = {
    # Integers are packed with the sums of their blocks: 1.2 times what is stored.
    "onnxruntime": Held(library=155 * _MIB, copies=0, copies_of_integers=0),
    # Floats are copied, and a tied head twice. Integers become 8 bits, and those of a head floats.
    "openvino": Held(
        library=285 * _MIB, copies=1.3, copies_of_integers=3.0, work=3, layers_at_once=True
    ),
}
_PACKED = 1.25
"""Copies of the weights in each graph that ONNX Runtime rearranges."""
_GRAPH = 16 << 10
"""Bytes of a layer in the file of a graph that is not made yet."""
_TOKENIZER = 40
"""Bytes of a tokenizer and its grammars' vocabulary for each of its file."""
_WIDTHS = "intermediate_size hidden_size ffn_dim d_model n_embd n_inner ffn_hidden_size".split()


@dataclass(frozen=True)
class BuildMemory:
    """A build, the graphs of it that are loaded, and the backend that runs them.

    in_steps: the graphs that ONNX Runtime runs beside OpenVINO.
    """

    build: Build
    backend: str
    graphs: Sequence[GraphName]
    in_steps: frozenset[GraphName] = frozenset()

    def parts(self) -> Iterator[Part]:
        """Memory that stays allocated while the build is served, and the work of a step."""
        yield Part("libraries", HELD[self.backend].library, "measured")
        yield Part("tokenizer", _TOKENIZER * self._size(TOKENIZER), "measured")
        yield Part("weights", weights_bytes(self._manifest), "exact")
        yield Part("rearranged weights", sum(map(self._copy, self.graphs)), "measured")
        yield Part("graphs", sum(map(self._graph, self.graphs)), "measured")
        yield Part("caches", self.caches, "exact")
        yield Part("inputs and outputs", sum(map(self._outputs, self.graphs)), "exact")
        yield Part("work of a step", sum(map(self._work, self.graphs)), "measured")

    @cached_property
    def caches(self) -> int:
        """Bytes of the largest caches of each kind of graph: smaller ones are parts of them."""
        largest: dict[str, int] = {}
        for name in self.graphs:
            kind = graph_of(name).kind
            pasts = [s for s in self._manifest.graphs[name].inputs if names.is_past(s.name)]
            if kind.owns_caches:
                largest[kind.name] = max(largest.get(kind.name, 0), total_bytes(pasts))
        return sum(largest.values())

    @cached_property
    def row(self) -> int:
        """Bytes of a batch slot's caches, with the position of each cache slot."""
        decode = self._manifest.graphs["decode"].inputs
        pasts = total_bytes(spec for spec in decode if names.is_past(spec.name))
        slots = sum(layer.cache_slots for layer in self._manifest.geometry.layers)
        heads = max(self._manifest.model.kv_heads)
        return pasts // self._manifest.batch + slots * heads * 8

    @property
    def _manifest(self) -> Manifest:
        return self.build.manifest

    def _size(self, name: str) -> int:
        path = self.build.directory / name
        return path.stat().st_size if path.is_file() else 0

    def _backend(self, graph: GraphName) -> str:
        return "onnxruntime" if graph in self.in_steps else self.backend

    def _copy(self, graph: GraphName) -> int:
        manifest, stored = self._manifest, weights_bytes(self._manifest)
        if not graph_of(graph).kind.has_weights:
            return 0
        held = HELD[self._backend(graph)]
        if manifest.holds_integers and held.copies_of_integers:
            bits = manifest.bits_per_weight or 8
            return int(stored * 8 / min(bits, 8) * held.copies_of_integers)
        if manifest.holds_integers:
            return int(_PACKED * stored)
        if manifest.dtype == "fp16":  # converted to fp32 for each graph
            return int(max(1, held.copies) * 2 * stored)
        return int(held.copies * stored)

    def _graph(self, graph: GraphName) -> int:
        size = self._size(self._manifest.graphs[graph].file) or _GRAPH * len(self._layers)
        return size * HELD[self._backend(graph)].graph

    def _outputs(self, graph: GraphName) -> int:
        """Bytes of what a graph has for itself: all but the caches that it writes in place."""
        entry, kind = self._manifest.graphs[graph], graph_of(graph).kind
        given = [one for one in entry.inputs if not names.is_past(one.name)]
        shared = {one.name for one in entry.inputs} if kind.writes_in_place else set()
        made = [one for one in entry.outputs if names.past_of(one.name) not in shared]
        return total_bytes([*given, *made])

    def _work(self, graph: GraphName) -> int:
        """Bytes of a layer's tensors while a graph runs, with scores where they may be formed."""
        manifest, kind = self._manifest, graph_of(graph).kind
        held = HELD[self._backend(graph)]
        inputs = {spec.name: spec for spec in manifest.graphs[graph].inputs}
        keys = [s for n, s in inputs.items() if names.is_past(n) and n.endswith(".key")]
        slots = max((spec.shape[2] for spec in keys), default=manifest.geometry.L_max)
        if kind.counts_votes and not kind.has_weights:
            return self._vote(slots, held)
        ids = inputs.get(names.INPUT_IDS)
        rows = ids.shape[0] * ids.shape[1] if ids else 1
        heads = max((4 * (layer.heads + layer.kv_heads)) * layer.widest for layer in self._layers)
        layer_bytes = rows * (4 * sum(self._widths) + heads) * FP32_BYTES
        scores = scores_bytes(manifest.model, rows, slots)
        mask = rows * slots * FP32_BYTES
        # Keys and values, repeated for their heads or converted.
        largest = max(map(tensor_bytes, keys), default=0)
        group = max(layer.group for layer in self._layers)
        states = 2 * largest * (group if held.layers_at_once else 1)
        vote = self._vote(slots, held) if manifest.geometry.is_single_shot(rows) else 0
        return held.work * layer_bytes + 2 * scores + mask + states + vote

    def _vote(self, slots: int, held: Held) -> int:
        manifest = self._manifest
        if not manifest.geometry.votes:
            return 0
        scores = vote_scores_bytes(manifest.model, manifest.geometry, "portable", slots)
        keys = max(layer.kv_heads * layer.query_dim for layer in self._layers) * slots * FP32_BYTES
        if held.layers_at_once:  # one copy of the scores, where ONNX Runtime has three
            return len(self._layers) * (scores // 3 + keys)
        return held.work * (scores + 2 * keys)

    @property
    def _layers(self) -> Sequence[LayerHeads]:
        return self._manifest.model.layers

    @cached_property
    def _widths(self) -> tuple[int, int]:
        """The two widest sizes of config.json: those of the MLP and of the hidden states."""
        path = self.build.directory / "config.json"
        found: list[int] = []
        if path.is_file():
            try:
                found = list(_sizes(json.loads(read_bytes(path, MANIFEST_BYTES, ""))))
            except (ValueError, UserError):
                found = []
        attention = max(layer.heads * layer.widest for layer in self._layers)
        first, second, *_ = sorted([*found, 4 * attention, attention], reverse=True)
        return first, second


def _sizes(config: Any) -> Iterator[int]:
    """Values of config.json that are widths, at any depth."""
    for name, value in config.items() if isinstance(config, dict) else ():
        if name in _WIDTHS and isinstance(value, int) and 0 < value < 1 << 24:
            yield value
        yield from _sizes(value)
