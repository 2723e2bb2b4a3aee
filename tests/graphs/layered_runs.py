"""Runs the graphs of a build by their contract, in ONNX Runtime, with plain arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.methods.sparse_prefill.spec import SparsePrefillOptions
from tests.graphs.layered import Array

Arrays = dict[str, Array]


class Running:
    """prefix: of the graphs' names, "" or "baseline-"."""

    def __init__(self, build: Build, prefix: str = "") -> None:
        self.build, self.prefix = build, prefix
        self._sessions: dict[str, ort.InferenceSession] = {}

    def run(self, graph: str, feeds: Arrays) -> Arrays:
        """Outputs by name. Inputs that the graph does not have are left out."""
        name = self.prefix + graph
        if name not in self._sessions:
            options = ort.SessionOptions()
            options.intra_op_num_threads, options.log_severity_level = 1, 3
            self._sessions[name] = ort.InferenceSession(self.build.graph(name), options)
        session = self._sessions[name]
        found = {one.name: feeds[one.name] for one in session.get_inputs()}
        outputs = [one.name for one in session.get_outputs()]
        return dict(zip(outputs, session.run(outputs, found), strict=True))

    def empty(self, graph: str) -> Arrays:
        """Caches of zeros, as inputs of a graph."""
        specs = self.build.manifest.graphs[self.prefix + graph].inputs
        return {s.name: np.zeros(s.shape, s.dtype) for s in specs if names.is_past(s.name)}

    def prefill(self, prompt: Sequence[int]) -> tuple[Array, Arrays, Arrays]:
        """Logits [V], one row of decode's caches, and kept positions by their names."""
        chunk = self.build.manifest.prefill_chunk
        if self.build.manifest.single_shot:
            feeds = {names.INPUT_IDS: _padded(prompt, chunk)}
            out = self.run("prefill", feeds | {names.PROMPT_LENGTH: np.array([len(prompt)])})
            return out[names.LOGITS][0], caches(out), _kept(out)
        budget = (
            0
            if self.prefix
            else self.build.manifest.graph_options.of(SparsePrefillOptions).prefill_budget
        )
        held = self.empty("prefill-sparse" if budget else "prefill")
        for start in _starts(len(prompt), chunk):
            ids = prompt[start : start + chunk]
            lengths = {names.PAST_LENGTH: [start], names.CHUNK_LENGTH: [len(ids)]}
            feeds = {names.INPUT_IDS: _padded(ids, chunk)} | held
            is_sparse = 0 < budget < start and start + chunk < len(prompt)
            graph = "prefill-sparse" if is_sparse else "prefill"
            out = self.run(graph, feeds | {n: np.array(one) for n, one in lengths.items()})
            held |= caches(out)
        logits = out[names.LOGITS][0]
        if self.prefix or not self.build.manifest.geometry.compresses:
            return logits, held, {}
        out = self.run("compress", out | held | {names.PROMPT_LENGTH: np.array([len(prompt)])})
        return logits, caches(out), _kept(out)

    def blocks(self, prompt: Sequence[int]) -> tuple[Array, Arrays, Arrays]:
        """The same block by block onto a compressed row."""
        chunk, held = self.build.manifest.prefill_chunk, self.empty("extend")
        specs = self.build.manifest.graphs["extend"].inputs
        held |= {s.name: np.full(s.shape, -1) for s in specs if s.name.startswith("slot_pos")}
        for start in range(0, len(prompt), chunk):
            ids = prompt[start : start + chunk]
            positions = np.arange(start, start + chunk)
            positions[len(ids) :] = -1
            feeds = {names.INPUT_IDS: _padded(ids, chunk), names.POSITION_IDS: positions[None]}
            out = self.run("extend", feeds | held | {names.CHUNK_LENGTH: np.array([len(ids)])})
            held = {names.past_of(name): one for name, one in out.items() if name != names.LOGITS}
        return out[names.LOGITS][0], {n: one for n, one in held.items() if names.is_past(n)}, {}


@dataclass
class Rows:
    """Requests that decode together. lengths: of their prompts."""

    running: Running
    lengths: Array
    held: Arrays

    @classmethod
    def of(cls, running: Running, requests: Sequence[tuple[int, Arrays]]) -> "Rows":
        """requests: a prompt's length, and its row."""
        lengths, rows = zip(*requests, strict=True)
        return cls(
            running, np.array(lengths), {n: np.concatenate([r[n] for r in rows]) for n in rows[0]}
        )

    def step(self, tokens: Sequence[int], count: int) -> Array:
        """Logits [B,V] of a token of each row, the `count`-th after the prompt."""
        feeds = {
            names.INPUT_IDS: np.array(tokens)[:, None],
            names.POSITION_IDS: (self.lengths + count)[:, None],
            names.PROMPT_LENGTH: self.lengths,
        }
        out = self.running.run("decode", feeds | self.held)
        self.held = caches(out)
        return out[names.LOGITS]


def caches(out: Arrays) -> Arrays:
    """The cache outputs as inputs of the next run."""
    return {names.past_of(name): one for name, one in out.items() if names.is_present(name)}


def _kept(out: Arrays) -> Arrays:
    return {name: one[0] for name, one in out.items() if name.startswith("topk_positions")}


def _starts(length: int, chunk: int) -> list[int]:
    whole = list(range(0, length - chunk + 1, chunk)) or [0]
    return whole if length <= chunk or length % chunk == 0 else [*whole, length - chunk]


def _padded(ids: Sequence[int], length: int) -> Array:
    return np.array([[*ids] + [0] * (length - len(ids))], np.int64)
