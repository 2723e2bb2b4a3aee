"""Feeds a build's graphs chunk by chunk, then token by token, each in a runner of Polygraphy.

Slow on purpose: every cache travels through the feeds, so that the runtime isn't trusted. Knows the
graphs' contract, and no backend.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import ml_dtypes  # noqa: F401 (teaches NumPy the name "bfloat16")
import numpy as np
from numpy.typing import NDArray

from snapexport.compare.loaders import Array, Feed, GraphLoader, Infer, on_onnxruntime
from snapexport.compare.method import Feeder, MethodMeasure
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.manifest import GraphEntry, GraphName, Manifest
from snapexport.contract.pieces import InnerChunks, chunks
from snapexport.exporter.weights.tensor_file import NUMPY_DTYPE
from snapexport.methods import table


@dataclass(frozen=True)
class Run:
    """The graphs' answer to a sequence.

    logits: float32 [V], by the index of the token that they follow: the last one of each chunk of
    the prompt, and each decoded one. kept: positions of the prompt that each compressed cache
    keeps, int64 [Hkv,K], ascending, -1 where unused.
    """

    logits: dict[int, NDArray[np.float32]]
    chunks: int
    kept: Sequence[NDArray[np.int64]]


class Loop:
    """prefill, compress and decode of a build, or with `baseline` its full-cache graphs."""

    def __init__(
        self, build: Build, baseline: bool = False, loader: GraphLoader | None = None
    ) -> None:
        """loader: ONNX Runtime's unless another is given."""
        self.build, manifest = build, build.manifest
        self._loader = loader or on_onnxruntime(build)
        self._full_cache = baseline or manifest.geometry.policy == "full"
        self._prefill: GraphName = "baseline-prefill" if baseline else "prefill"
        self._decode: GraphName = "baseline-decode" if baseline else "decode"
        self._compresses = "compress" in manifest.graphs and not baseline
        methods = table.methods_on(manifest.geometry, manifest.graph_options)
        parts = (method.part("measure") for method in methods)
        self._methods: list[MethodMeasure] = [part for part in parts if part and self._compresses]
        self._loaded: dict[GraphName, tuple[Infer, ExitStack]] = {}

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, *_: object) -> None:
        self._drop(*self._loaded)

    def run(
        self, tokens: Sequence[int] | Array, prompt_length: int, last_position: int | None = None
    ) -> Run:
        """Prefill and compress the prompt, and decode the tokens that follow it, one by one.

        last_position: of the last token; None: the one after the others.
        """
        prompt, logits = np.asarray(tokens[:prompt_length]), {}
        for end, out in self.chunks(prompt):
            if names.LOGITS in out:  # a sparse chunk has none
                logits[end - 1] = out[names.LOGITS][0]
        if self._compresses:
            out = self._compress(out, prompt)
        kept = () if self._full_cache else self._kept_positions(out)
        places, last = self._places(prompt_length), len(tokens) - 1
        for index in range(prompt_length, len(tokens)):
            position = index if last_position is None or index < last else last_position
            scalars = self._decode_scalars(int(tokens[index]), position, prompt_length)
            if places:
                places.feed(scalars)
            out = self._run(self._decode, scalars | self._past(self._decode, out))
            logits[index] = out[names.LOGITS][0]
        return Run(logits, len(self._spans(prompt_length)), kept)

    def logits(self, tokens: Sequence[int] | Array, prompt_length: int) -> NDArray[np.float32]:
        """Logits [1+N,V] after the prompt, and after each of the N tokens that follow it."""
        found = self.run(tokens, prompt_length).logits
        rows = [found[index] for index in range(prompt_length - 1, len(tokens))]
        return np.stack(rows).astype(np.float32)

    def prompt_states(self, prompt: Sequence[int] | Array) -> Feed:
        """The outputs of prefill's last chunk: caches of the whole prompt, and what votes."""
        for _, out in self.chunks(np.asarray(prompt)):
            found = out
        return found

    def is_sparse(self, prompt_length: int) -> bool:
        """Whether a chunk of such a prompt attends to a part of what is before it."""
        spans = self._spans(prompt_length)
        return any(
            self._graph_of(start, end == prompt_length) != self._prefill for start, end in spans
        )

    def _spans(self, length: int) -> list[tuple[int, int]]:
        """The chunks of a prompt."""
        manifest = self.build.manifest
        if manifest.single_shot:
            return [(0, length)]
        return chunks(length, manifest.prefill_chunk, rewinds=not manifest.model.stateful)

    def _graph_of(self, start: int, is_last: bool) -> GraphName:
        """The graph of a chunk: one that is not a prompt's last may have a graph of its own."""
        inner = self._inner
        return inner.graph if inner and inner.takes(start) and not is_last else self._prefill

    @property
    def _inner(self) -> InnerChunks | None:
        manifest = self.build.manifest
        options = manifest.graph_options if self._compresses else GraphOptions()
        return table.inner_chunks(options, manifest.prefill_chunk)

    def chunks(self, prompt: Array) -> Iterator[tuple[int, Feed]]:
        """Run prefill and yield the end of each chunk, and the graph's outputs."""
        length, chunk, out = len(prompt), self.build.manifest.prefill_chunk, Feed()
        padded = np.zeros(max(length, chunk), np.int64)
        padded[:length] = prompt
        for start, end in self._spans(length):
            graph, tokens = self._graph_of(start, end == length), padded[start : start + chunk]
            feed = _chunk_feed(tokens, start, end) | {names.PROMPT_LENGTH: np.array([length])}
            out = self._run(graph, feed | self._past(graph, out))
            yield end, out

    def _compress(self, out: Feed, prompt: Array) -> Feed:
        """The outputs of compress, from those of the last chunk, and the recurrent states."""
        votes = Feed()
        for method in self._methods:
            votes |= method.votes(self, out, prompt)
        given = out | votes | {names.PROMPT_LENGTH: np.array([len(prompt)])}
        states = {name: one for name, one in out.items() if names.is_state(name)}
        return states | self._run("compress", given | self._past("compress", out))

    @property
    def manifest(self) -> Manifest:
        """The build's."""
        return self.build.manifest

    def run_chunk(self, out: Feed, tokens: Array, start: int) -> Feed:
        """Run a whole chunk of tokens [C] at a position, on the caches that another left."""
        feed = _chunk_feed(tokens, start, start + len(tokens))
        return self._run(self._prefill, feed | self._past(self._prefill, out))

    def run_on(self, graph: GraphName, out: Feed, given: Feed) -> Feed:
        """Run a further graph on the caches that a chunk left, and what else it takes."""
        return self._run(graph, out | given | self._past(graph, out))

    def _kept_positions(self, compressed: Feed) -> list[NDArray[np.int64]]:
        """Kept positions of each cache, [Hkv,0] where it has no vote."""
        manifest = self.build.manifest
        caches, kv_heads = manifest.geometry.slots.caches, manifest.model.kv_heads
        nothing = [np.empty((1, one.count(kv_heads[one.layer]), 0), np.int64) for one in caches]
        found = [names.topk_positions(one.cache) for one in caches]
        return [compressed.get(*one)[0] for one in zip(found, nothing, strict=True)]

    def _run(self, graph: GraphName, feed: Feed) -> Feed:
        """Run a graph on what it takes of a feed, and on the weights that are its inputs."""
        taken = {spec.name for spec in self.entry(graph).inputs}
        given = {name: value for name, value in feed.items() if name in taken}
        return self._infer(graph)(given | _mapped_weights(self.build, graph))

    def _infer(self, graph: GraphName) -> Infer:
        """The loaded graph. Of prefill and decode, which have all weights, one is loaded."""
        if graph not in self._loaded:
            large = {self._prefill, self._decode, *([self._inner.graph] if self._inner else [])}
            self._drop(*large.intersection(self._loaded if graph in large else ()))
            session = ExitStack()
            self._loaded[graph] = session.enter_context(self._loader(graph)), session
        return self._loaded[graph][0]

    def _drop(self, *graphs: GraphName) -> None:
        for graph in graphs:
            _, session = self._loaded.pop(graph)
            session.close()

    def _decode_scalars(self, token: int, position: int, prompt_length: int) -> Feed:
        """Inputs of one step apart from the caches: the sequence is in batch slot 0."""
        batch = self.build.manifest.batch
        feed = {
            names.INPUT_IDS: np.full((batch, 1), token),
            names.POSITION_IDS: np.full((batch, 1), position),
            names.PROMPT_LENGTH: np.full(batch, prompt_length),
            names.TEMPERATURE: np.ones(batch, np.float32),
        }
        known = {*feed, names.RANK}
        others = [
            spec
            for spec in self.entry(self._decode).inputs
            if names.is_of_host(spec.name) and spec.name not in known
        ]
        return feed | {spec.name: np.zeros(spec.shape, np.int64) for spec in others}

    def _places(self, prompt_length: int) -> Feeder | None:
        """The writer of further inputs of a decode step after a prompt; None: it has none."""
        manifest = self.build.manifest
        found = (method.feeder(manifest, prompt_length) for method in self._methods)
        return None if self._full_cache else next(filter(None, found), None)

    def _past(self, graph: GraphName, out: Feed) -> Feed:
        """Cache inputs of a graph: the last graph's outputs in every batch slot, or zeros."""
        past = {}
        for spec in self.entry(graph).inputs:
            if names.is_past(spec.name):
                present = out.get(names.present_of(spec.name))
                if present is None:
                    present = np.zeros([1] * len(spec.shape), spec.dtype)
                if present.shape != tuple(spec.shape):  # a further copy would take a cache's memory
                    present = np.broadcast_to(present[:1], spec.shape).copy()
                past[spec.name] = present
        return past

    def entry(self, graph: GraphName) -> GraphEntry:
        """A graph of the manifest."""
        return self.build.manifest.graphs[graph]


def _chunk_feed(tokens: Array, start: int, end: int) -> Feed:
    """A chunk's tokens [C], of which those at the positions [start, end) count."""
    return {
        names.INPUT_IDS: tokens[None],
        names.PAST_LENGTH: np.array([start]),
        names.CHUNK_LENGTH: np.array([end - start]),
        names.TEMPERATURE: np.ones(1, np.float32),
    }


def _mapped_weights(build: Build, graph: GraphName) -> Feed:
    """The weights that a graph takes as inputs, mapped from the build's files."""
    return {
        spec.name: np.memmap(span.file, NUMPY_DTYPE[span.dtype], "r", span.offset, span.shape)
        for spec, span in build.shared_weights([graph])
    }
