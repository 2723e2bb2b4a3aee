"""Runs a build's graphs through ONNX Runtime by the documented contract, with plain NumPy arrays.

Uses neither the runtime nor the package's constants: the names here are the contract's.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Union

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[Any]
Cache = list[tuple[Array, Array]]
"""Keys and values of every layer."""
Session = Union[ort.InferenceSession, "WithWeights"]


@dataclass
class Prefilled:
    """logits [V]; cache [1, Hkv, T, D]; windows: per layer [1, H, W, D], empty without a vote.

    hidden_states: {first position: [1, C, E]} of each chunk, where they are an output.
    """

    length: int
    logits: Array
    cache: Cache
    windows: list[Array]
    hidden_states: dict[int, Array] = field(default_factory=dict)


@dataclass
class Compressed:
    """cache [1, Hkv, S, D]; topk: per layer [Hkv, K], K = 0 where the graph has no such output.

    Of a build that does not compress: cache [1, Hkv, T, D], no topk. hidden_states: of Prefilled.
    """

    length: int
    cache: Cache
    topk: list[Array] = field(default_factory=list)
    hidden_states: dict[int, Array] = field(default_factory=dict)


class RawBuild:
    """The graphs of one build directory. `prefix`: "baseline-" for the graphs without surgery."""

    def __init__(self, directory: Path, prefix: str = "") -> None:
        self.directory = directory
        self.prefix = prefix
        self.manifest: dict[str, Any] = json.loads((directory / "manifest.json").read_text())
        model = self.manifest["model"]
        # The last layers may read the caches of earlier ones.
        self.layers: int = len(set(model.get("cache_of", range(model["num_hidden_layers"]))))
        groups = [] if prefix else self.manifest["geometry"]["head_groups"]
        self.caches: int = sum(map(len, groups)) or self.layers
        self.chunk: int = self.manifest["prefill_chunk"]
        self.batch: int = self.manifest["batch"]

    @cached_property
    def prefill_session(self) -> Session:
        return self.session("prefill")

    @cached_property
    def compress_session(self) -> Session:
        return self.session("compress")

    @cached_property
    def decode_session(self) -> Session:
        return self.session("decode")

    def session(self, graph: str) -> Session:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3  # silence: "in-place not activated", at every step
        entry = self.manifest["graphs"][self.prefix + graph]
        path = self.directory / entry["file"]
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return WithWeights(session, self._matrices) if self._matrices else session

    @cached_property
    def _matrices(self) -> dict[str, Array]:
        """The weights that graphs take as inputs, if they do."""
        if not self.manifest["graph_options"]["share_weights"]:
            return {}
        files = [self.directory / entry["file"] for entry in self.manifest["weights"]]
        weights = {name: one for file in files for name, one in load_file(file).items()}
        return {name: one for name, one in weights.items() if one.ndim > 1}

    @property
    def single_shot(self) -> bool:
        return "prompt_length" in {value.name for value in self.prefill_session.get_inputs()}

    def prefill(self, prompt: Sequence[int], stale: float = 0.0, pad: int = 0) -> Prefilled:
        """The prompt chunk by chunk. stale: fills the cache slots beforehand."""
        session = self.prefill_session
        cache, out = empty_cache(session, self.layers, stale), {}
        states: dict[int, Array] = {}
        for start in chunk_starts(len(prompt), self.chunk):
            ids = prompt[start : start + self.chunk]
            feeds = {
                "input_ids": padded(ids, self.chunk, pad),
                "past_length": np.array([start]),
                "chunk_length": np.array([len(ids)]),
            }
            out = run(session, feeds | past(cache))
            cache = present(out, self.layers)
            if "hidden_states" in out:
                states[start] = out["hidden_states"]
        windows = [out[f"query_window.{i}"] for i in range(self.layers) if "query_window.0" in out]
        return Prefilled(len(prompt), out["logits"][0], cache, windows, states)

    def compress(self, prefilled: Prefilled) -> Compressed:
        """The compress step: from the full cache to the compressed one."""
        feeds = {"prompt_length": np.array([prefilled.length])} | past(prefilled.cache)
        feeds |= {f"query_window.{i}": window for i, window in enumerate(prefilled.windows)}
        out = run(self.compress_session, feeds)
        return self._compressed(prefilled.length, out, prefilled.hidden_states)

    def prefill_single_shot(self, prompt: Sequence[int], pad: int = 0) -> tuple[Array, Compressed]:
        """The whole padded prompt at once: logits [V] and the compressed cache."""
        feeds = {
            "input_ids": padded(prompt, self.chunk, pad),
            "prompt_length": np.array([len(prompt)]),
        }
        out = run(self.prefill_session, feeds)
        states = {0: out["hidden_states"]} if "hidden_states" in out else {}
        return out["logits"][0], self._compressed(len(prompt), out, states)

    def _compressed(
        self, length: int, out: dict[str, Array], states: dict[int, Array]
    ) -> Compressed:
        cache = present(out, self.caches)
        topk = [
            out.get(f"topk_positions.{i}", np.zeros((1, key.shape[1], 0), np.int64))[0]
            for i, (key, _) in enumerate(cache)
        ]
        return Compressed(length, cache, topk, states)


def prefill_and_compress(
    build: RawBuild, ids: Sequence[int], pad: int = 0
) -> tuple[Array, Compressed]:
    """Logits [V] of the prompt's end, and the request as an input of the decode graph."""
    if build.single_shot:
        return build.prefill_single_shot(ids, pad)
    prefilled = build.prefill(ids, pad=pad)
    if build.prefix + "compress" in build.manifest["graphs"]:
        return prefilled.logits, build.compress(prefilled)
    states = prefilled.hidden_states
    return prefilled.logits, Compressed(len(ids), prefilled.cache, hidden_states=states)


class WithWeights:
    """A session whose weights are inputs, as if they were its own."""

    def __init__(self, session: ort.InferenceSession, weights: dict[str, Array]) -> None:
        self._session = session
        inputs = [value.name for value in session.get_inputs()]
        self._weights = {name: weights[name] for name in inputs if name in weights}
        self.get_outputs = session.get_outputs

    def get_inputs(self) -> list[Any]:
        return [one for one in self._session.get_inputs() if one.name not in self._weights]

    def run(self, outputs: list[str], feeds: dict[str, Array]) -> list[Any]:
        return self._session.run(outputs, feeds | self._weights)


class Slots:
    """The batch slots of a build: each holds one request, at its own length."""

    def __init__(self, build: RawBuild, requests: Sequence[Compressed]) -> None:
        """The first request also fills batch slots without a request. Their outputs are dropped."""
        self.session = build.decode_session
        self.layers = build.caches
        self.used = len(requests)
        rows = [requests[i if i < self.used else 0] for i in range(build.batch)]
        self.prompt_length = np.array([row.length for row in rows])
        self.positions = self.prompt_length.copy()
        self.cache = stacked([row.cache for row in rows])
        self.hidden_states = np.empty(0, np.float32)

    def step(self, tokens: Sequence[int]) -> Array:
        """Feed one token to every used batch slot -> logits [used, V]."""
        idle = len(self.positions) - self.used
        ids = np.array([*tokens] + [tokens[0]] * idle)[:, None]
        out = run(self.session, self.feeds(ids))
        self.cache = present(out, self.layers)
        self.positions = self.positions + 1
        self.hidden_states = out.get("hidden_states", self.hidden_states)
        return out["logits"][: self.used]

    def feeds(self, ids: Array) -> dict[str, Array]:
        scalars = {
            "input_ids": ids,
            "position_ids": self.positions[:, None],
            "prompt_length": self.prompt_length,
        }
        wanted = {value.name for value in self.session.get_inputs()}
        return {k: v for k, v in scalars.items() if k in wanted} | past(self.cache)


def stacked(caches: Sequence[Cache]) -> Cache:
    """[1, ...] each -> [B, ...]."""
    return [
        (np.concatenate([k for k, _ in layer]), np.concatenate([v for _, v in layer]))
        for layer in zip(*caches, strict=True)
    ]


def chunk_starts(length: int, chunk: int) -> list[int]:
    """First positions of the chunks; the last chunk is aligned to the prompt's end."""
    whole = list(range(0, length - chunk + 1, chunk)) or [0]
    return whole if length <= chunk or length % chunk == 0 else [*whole, length - chunk]


def padded(ids: Sequence[int], length: int, pad: int) -> Array:
    """int64 [1, length], pads at the end."""
    return np.array([[*ids] + [pad] * (length - len(ids))], np.int64)


def empty_cache(session: Session, layers: int, fill: float) -> Cache:
    """A cache of the graph's own shape and type, every number `fill`."""
    shapes = {value.name: value.shape for value in session.get_inputs()}
    return [
        (
            np.full(shapes[f"past_key_values.{i}.key"], fill, np.float32),
            np.full(shapes[f"past_key_values.{i}.value"], fill, np.float32),
        )
        for i in range(layers)
    ]


def past(cache: Cache) -> dict[str, Array]:
    keys = {f"past_key_values.{i}.key": key for i, (key, _) in enumerate(cache)}
    return keys | {f"past_key_values.{i}.value": value for i, (_, value) in enumerate(cache)}


def present(out: dict[str, Array], layers: int) -> Cache:
    return [(out[f"present.{i}.key"], out[f"present.{i}.value"]) for i in range(layers)]


def run(session: Session, feeds: dict[str, Array]) -> dict[str, Array]:
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))
