"""The answers of a tiny model in NumPy and torch, with what a cache no longer holds hidden."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry
from tests.graphs.layered import Array, Layered
from tests.oracle.vote import gap, is_whole, keep, vote


@dataclass
class Answer:
    """logits [1 + steps, V]: of the prompt's end and of each step. tokens: the likeliest of each.

    kept: by cache, [Hkv,K], -1 where unused. gap: the smallest distance of a vote from changing.
    """

    logits: Array
    tokens: list[int]
    kept: dict[int, Array]
    gap: float


@dataclass
class _Run:
    model: Layered
    geometry: CacheGeometry
    prompt_length: int
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    kept: dict[int, Tensor] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        weights = self.model.weights.items()
        self.weights = {name: torch.from_numpy(one).double() for name, one in weights}
        caches = zip(self.geometry.slots.caches, self.geometry.layers, strict=True)
        self.shapes = {one.cache: shape for one, shape in caches}

    def feed(self, tokens: Sequence[int], start: int) -> Array:
        """Logits [n,V] of tokens from a position on. Those of a prompt see all before them."""
        positions = torch.arange(start, start + len(tokens))
        hidden = self.weights["embed"][list(tokens)] + self.weights["places"][positions]
        for layer in range(len(self.model.layers)):
            hidden = hidden + self._attend(layer, _normed(hidden), positions)
        return (_normed(hidden) @ self.weights["head"]).numpy()

    def _attend(self, layer: int, normed: Tensor, positions: Tensor) -> Tensor:
        one, source = self.model.layers[layer], self.model.source(layer)
        query, key, value = (
            (normed @ self.weights[f"{layer}.{name}"]).view(len(normed), heads, -1).transpose(0, 1)
            for name, heads in (("q", one.heads), ("k", one.kv_heads), ("v", one.kv_heads))
        )
        if source == layer:
            self.keys[layer] = _after(self.keys.get(layer), key)
            self.values[layer] = _after(self.values.get(layer), value)
            if layer not in self.kept and self.geometry.compresses:
                self._vote(layer, query)
        keys, values = self.keys[source], self.values[source]
        grouped = query.unflatten(0, (one.kv_heads, -1))
        scores = grouped @ keys[:, None].mT * one.scale
        if one.softcap:
            scores = one.softcap * (scores / one.softcap).tanh()
        visible = self._visible(layer, positions, query)[:, None]
        hidden = scores.masked_fill(~visible, -torch.inf)
        if one.sinks:
            column = self.weights[f"{layer}.sink"].view(one.kv_heads, -1, 1, 1)
            hidden = torch.cat([hidden, column.expand(*hidden.shape[:3], 1)], -1)
        share = hidden.softmax(-1)[..., : keys.shape[1]]
        mixed = (share @ values[:, None]).flatten(0, 1)
        return mixed.transpose(0, 1).flatten(1) @ self.weights[f"{layer}.o"]

    def _visible(self, layer: int, positions: Tensor, query: Tensor) -> Tensor:
        """Bool [Hkv or 1,n,N]."""
        one, source = self.model.layers[layer], self.model.source(layer)
        every, row = torch.arange(self.keys[source].shape[1]), positions[:, None]
        seen = (every <= row)[None]
        if one.window:
            seen = seen & (every > row - one.window)
        if one.chunk:
            seen = seen & (every >= row - row % one.chunk)
        if len(positions) > 1 or not self.geometry.compresses:
            return seen
        return seen & self._held(self.shapes[source], self.kept[source], every, row)

    def _held(self, shape: LayerGeometry, kept: Tensor, every: Tensor, row: Tensor) -> Tensor:
        """Bool [Hkv,1,N]: what a decode step at position `row` still finds."""
        ring = shape.L_recent + shape.K * is_whole(shape, self.prompt_length)
        in_ring = (every >= shape.L_sink) & (every > row - ring)
        voted = (kept[:, :, None] == every).any(1)[:, None]
        return (every < shape.L_sink) | in_ring | voted

    def _vote(self, layer: int, query: Tensor) -> None:
        one, shape = self.model.layers[layer], self.shapes[layer]
        window = query[:, -self.geometry.vote.L_obs :]
        key = self.keys[layer]
        scores = vote(window, key, shape, self.geometry, one.scale, one.softcap or None)
        self.kept[layer] = keep(scores, shape)
        self.gaps += gap(scores, shape.K).tolist()


def answer(model: Layered, geometry: CacheGeometry, prompt: Sequence[int], steps: int) -> Answer:
    """The prompt in full, then `steps` tokens greedily from what is kept of it."""
    return _answer(model, geometry, tuple(prompt), steps)


@cache
def _answer(model: Layered, geometry: CacheGeometry, prompt: tuple[int, ...], steps: int) -> Answer:
    """The same for every target."""
    run = _Run(model, geometry, len(prompt))
    logits = [run.feed(prompt, 0)[-1]]
    for step in range(steps):
        logits.append(run.feed([int(logits[-1].argmax())], len(prompt) + step)[-1])
    kept = {cache: one.numpy() for cache, one in run.kept.items()}
    tokens = [int(row.argmax()) for row in logits]
    return Answer(np.stack(logits), tokens, kept, min(run.gaps, default=1.0))


def clear_prompt(model: Layered, geometry: CacheGeometry, length: int) -> list[int]:
    """A random prompt whose votes are no near ties."""
    for seed in range(100):
        rng = np.random.default_rng([length, seed])
        prompt: list[int] = rng.integers(0, len(model.weights["embed"]), length).tolist()
        if answer(model, geometry, prompt, 0).gap > 1e-4:
            return prompt
    raise AssertionError("no clear prompt")


def _normed(hidden: Tensor) -> Tensor:
    return hidden / (hidden.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def _after(past: Tensor | None, new: Tensor) -> Tensor:
    return new if past is None else torch.cat([past, new], 1)
