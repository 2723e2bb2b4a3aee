"""Runs a build's graphs over a whole sequence, each in a runner of Polygraphy.

Slow on purpose: every cache travels through the feeds, so that the runtime isn't trusted. Knows the
graphs' contract, and no backend.
"""

from collections.abc import Sequence
from contextlib import ExitStack

import ml_dtypes  # noqa: F401 (teaches NumPy the name "bfloat16")
import numpy as np

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import GraphEntry, GraphName
from snapexport.contract.pieces import chunks
from snapexport.exporter.weights.tensor_file import NUMPY_DTYPE
from snapexport.measure.accuracy.graph_loader import GraphLoader, Infer, on_onnxruntime
from snapexport.measure.accuracy.sequence import Array, Feed, SequenceRunner
from snapexport.methods.repeat.spec import VOTER, repeated_chunk, repeated_starts
from snapexport.methods.several_tokens.run import SlotPositions
from snapexport.methods.sparse_prefill.spec import GRAPH as SPARSE
from snapexport.methods.sparse_prefill.spec import sparse_prefill


class GraphRunner(SequenceRunner):
    """prefill, compress and decode of a build, or with `baseline` its full-cache graphs."""

    def __init__(
        self,
        build: Build,
        baseline: bool = False,
        loader: GraphLoader | None = None,
        remark: str = "",
        never_sampled: Sequence[int] = (),
    ) -> None:
        """loader: ONNX Runtime's unless another is given. remark: added to the name."""
        policy = build.manifest.geometry.policy
        super().__init__(("full cache" if baseline else policy) + remark, never_sampled)
        self.build = build
        self._loader = loader or on_onnxruntime(build)
        self.lossless = baseline or policy == "full"
        options = build.manifest.graph_options
        self.rounds_cache = not baseline and options.cache_dtype is not None
        self.rounds_prompt = not baseline and options.prompt_cache_dtype is not None
        self._prefill: GraphName = "baseline-prefill" if baseline else "prefill"
        self._decode: GraphName = "baseline-decode" if baseline else "decode"
        self._compresses = "compress" in build.manifest.graphs and not baseline
        self._repeats = self._compresses and build.manifest.geometry.voter == VOTER
        self._loaded: dict[GraphName, tuple[Infer, ExitStack]] = {}

    def activate_impl(self) -> None:
        """Do nothing: a graph is loaded when it runs."""

    def deactivate_impl(self) -> None:
        """Drop the sessions."""
        self._drop(*self._loaded)

    def logits(self, token_ids: Array, prompt_length: int) -> Array:
        """The graphs' logits [1 + N, V], with the continuation forced."""
        out = self.prompt_states(token_ids[:prompt_length])
        rows = [out[names.LOGITS][0]]
        if self._compresses:
            out = self._compressed(out, token_ids[:prompt_length])
        places = self._places(prompt_length)
        for position in range(prompt_length, len(token_ids)):
            scalars = self._decode_scalars(int(token_ids[position]), position, prompt_length)
            if places:
                places.feed(scalars)
            out = self._run(self._decode, scalars | self._past(self._decode, out))
            rows.append(out[names.LOGITS][0])
        return np.stack(rows).astype(np.float32)

    def prompt_states(self, prompt: Array) -> Feed:
        """The outputs of prefill's last chunk: caches of the whole prompt, and what votes."""
        out: Feed = {}
        *amid, last = self._prefill_scalars(prompt)
        for scalars in amid:
            graph = self._graph_amid(int(scalars[names.PAST_LENGTH][0]))
            out = self._run(graph, scalars | self._past(graph, out))
        return self._run(self._prefill, last | self._past(self._prefill, out))

    def is_sparse(self, prompt_length: int) -> bool:
        """Whether a chunk of such a prompt attends to a part of what is before it."""
        *amid, _ = self._prefill_scalars(np.zeros(prompt_length, np.int64))
        starts = (int(scalars[names.PAST_LENGTH][0]) for scalars in amid)
        return any(self._graph_amid(start) == SPARSE for start in starts)

    def _graph_amid(self, start: int) -> GraphName:
        """The graph of a chunk that is not a prompt's last."""
        manifest = self.build.manifest
        sparse = sparse_prefill(manifest.graph_options, manifest.prefill_chunk)
        is_sparse = sparse and self._compresses and sparse.takes(start)
        return SPARSE if is_sparse else self._prefill

    def _compressed(self, out: Feed, prompt: Array) -> Feed:
        """The caches after compress, from the caches and query windows of the last chunk, or from
        the votes of the repeated prompt."""
        length = {names.PROMPT_LENGTH: np.array([len(prompt)])}
        if self._repeats:
            decides = self._votes(out, prompt, length)
        else:
            decides = self._windows("compress", out)
        states = {name: one for name, one in out.items() if names.is_state(name)}
        return states | self._run("compress", length | decides | self._past("compress", out))

    def _votes(self, out: Feed, prompt: Array, length: Feed) -> Feed:
        """Votes as vote.onnx adds them up; zeros for a prompt that is kept whole."""
        inputs = self._entry("vote").inputs
        states = {names.present_of(spec.name): spec for spec in inputs}
        wanted = [spec.name for spec in self._entry("vote").outputs]
        votes = {name: np.zeros(states[name].shape, np.float32) for name in wanted}
        manifest = self.build.manifest
        chunk, starts = manifest.prefill_chunk, repeated_starts(len(prompt), manifest.prefill_chunk)
        for start in starts if len(prompt) > manifest.geometry.held_whole else ():
            feed = self._temperature(1) | {
                names.INPUT_IDS: np.array([repeated_chunk(prompt.tolist(), chunk, start)]),
                names.PAST_LENGTH: np.array([len(prompt)]),
                names.CHUNK_LENGTH: np.array([chunk]),
            }
            out = self._run(self._prefill, feed | self._past(self._prefill, out))
            before = {names.past_of(name): value for name, value in votes.items()}
            caches = self._past("vote", out) | self._windows("vote", out)
            votes = self._run("vote", length | before | caches)
        return {names.past_of(name): votes[name] for name in wanted}

    def _windows(self, graph: GraphName, out: Feed) -> Feed:
        """The query windows that a graph takes, of the last chunk."""
        inputs = {spec.name for spec in self._entry(graph).inputs}
        return {name: value for name, value in out.items() if name in inputs}

    def _run(self, graph: GraphName, feed: Feed) -> Feed:
        """Run a graph, on the weights that it takes as inputs too."""
        taken = {spec.name for spec in self._entry(graph).inputs}
        given = {name: value for name, value in feed.items() if name in taken}
        return self._infer(graph)(given | _mapped_weights(self.build, graph))

    def _infer(self, graph: GraphName) -> Infer:
        """The loaded graph. Of prefill and decode, which have all weights, one is loaded."""
        if graph not in self._loaded:
            large = {self._prefill, self._decode, SPARSE}
            self._drop(*large.intersection(self._loaded if graph in large else ()))
            session = ExitStack()
            self._loaded[graph] = session.enter_context(self._loader(graph)), session
        return self._loaded[graph][0]

    def _drop(self, *graphs: GraphName) -> None:
        for graph in graphs:
            _, session = self._loaded.pop(graph)
            session.close()

    def _prefill_scalars(self, prompt: Array) -> list[Feed]:
        """Inputs of each chunk apart from the caches."""
        chunk, rewinds = self.build.manifest.prefill_chunk, not self.build.manifest.model.stateful
        length = len(prompt)
        padded = np.zeros((1, max(length, chunk)), np.int64)
        padded[0, :length] = prompt
        others = self._temperature(1)
        if self.build.manifest.single_shot:
            return [{names.INPUT_IDS: padded, names.PROMPT_LENGTH: np.array([length])} | others]
        return [
            others
            | {
                names.INPUT_IDS: padded[:, start : start + chunk],
                names.PAST_LENGTH: np.array([start]),
                names.CHUNK_LENGTH: np.array([end - start]),
            }
            for start, end in chunks(length, chunk, rewinds=rewinds)
        ]

    def _decode_scalars(self, token: int, position: int, prompt_length: int) -> Feed:
        """Inputs of one step apart from the caches: the sequence is in batch slot 0."""
        batch = self.build.manifest.batch
        feed = {
            names.INPUT_IDS: np.full((batch, 1), token),
            names.POSITION_IDS: np.full((batch, 1), position),
            names.PROMPT_LENGTH: np.full(batch, prompt_length),
            **self._temperature(batch),
        }
        inputs = {spec.name: spec for spec in self._entry(self._decode).inputs}
        places = [
            one for name, one in inputs.items() if name.startswith(("write_slot", "slot_positions"))
        ]
        feed |= {spec.name: np.zeros(spec.shape, np.int64) for spec in places}
        return {name: value for name, value in feed.items() if name in inputs}

    def _places(self, prompt_length: int) -> SlotPositions | None:
        """Where decode writes, in a build whose steps may take several tokens: one at a time."""
        geometry, batch = self.build.manifest.geometry, self.build.manifest.batch
        if not geometry.steps.several or self.lossless:
            return None
        places = SlotPositions(geometry, batch)
        for slot in range(batch):
            places.fill(slot, prompt_length)
        return places

    def _temperature(self, rows: int) -> Feed:
        """The input of graphs with top tokens, which are not compared."""
        return {names.TEMPERATURE: np.ones(rows, np.float32)}

    def _past(self, graph: GraphName, out: Feed) -> Feed:
        """Cache inputs of a graph: the last graph's outputs in every batch slot, or zeros."""
        past = {}
        for spec in self._entry(graph).inputs:
            if names.is_past(spec.name):
                present = out.get(names.present_of(spec.name))
                if present is None:
                    present = np.zeros([1] * len(spec.shape), spec.dtype)
                if present.shape != tuple(spec.shape):  # a further copy would take a cache's memory
                    present = np.broadcast_to(present[:1], spec.shape).copy()
                past[spec.name] = present
        return past

    def _entry(self, graph: GraphName) -> GraphEntry:
        return self.build.manifest.graphs[graph]


def _mapped_weights(build: Build, graph: GraphName) -> Feed:
    """The weights that a graph takes as inputs, mapped from the build's files."""
    return {
        spec.name: np.memmap(span.file, NUMPY_DTYPE[span.dtype], "r", span.offset, span.shape)
        for spec, span in build.shared_weights([graph])
    }
