"""Runs decode steps of several tokens by the documented contract, with plain NumPy arrays.

Keeps the position that each cache slot holds by itself: it shares no code with the runtime.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry

from .raw import Array, Compressed, RawBuild, past, present, run, stacked


class SeveralSlots:
    """The batch slots of a build with --tokens-per-step."""

    def __init__(
        self, build: RawBuild, geometry: CacheGeometry, requests: Sequence[Compressed]
    ) -> None:
        """The first request also fills batch slots without a request."""
        self.build, self.layers = build, build.caches
        self.sessions = {
            1: build.decode_session,
            geometry.steps.tokens: build.session("verify"),
        }
        rows = [requests[i if i < len(requests) else 0] for i in range(build.batch)]
        self.lengths = np.array([row.length for row in rows])
        self.positions = self.lengths.copy()
        self.cache = stacked([row.cache for row in rows])
        shapes = dict.fromkeys(geometry.layers) if geometry.compresses else {}
        self.held = [Held(shape, self.lengths) for shape in shapes]

    def step(self, tokens: Sequence[Sequence[int]]) -> Array:
        """Feed tokens [B,C] -> logits [B,C,V]. `accept` follows."""
        ids = np.array(tokens)
        count = ids.shape[1]
        positions = self.positions[:, None] + np.arange(count)
        feeds: dict[str, Any] = {"input_ids": ids, "position_ids": positions}
        if any(held.shape.K for held in self.held):
            feeds["prompt_length"] = self.lengths
        for index, held in enumerate(self.held):
            suffix = f"_{index + 1}" if index else ""
            feeds[f"write_slot{suffix}"] = held.write(positions)
            feeds[f"slot_positions{suffix}"] = held.slots.copy()
        out = run(self.sessions[count], feeds | past(self.cache))
        self.cache = present(out, self.layers)
        return out["logits"] if count > 1 else out["logits"][:, None]

    def accept(self, counts: Sequence[int]) -> None:
        """Keep the first tokens of each batch slot's step."""
        for held in self.held:
            held.accept(counts)
        self.positions = self.positions + np.array(counts)


class Held:
    """Which position each cache slot of one shape of layers holds, [B,S]."""

    def __init__(self, shape: LayerGeometry, lengths: Array) -> None:
        self.shape = shape
        ring_end = shape.L_sink + shape.L_recent + shape.spare
        self.slots = np.full((len(lengths), ring_end + shape.K), -1, np.int64)
        self.next: list[int] = []
        self.written: list[int] = []
        self.ends: list[int] = []
        for row, length in zip(self.slots, lengths.tolist(), strict=True):
            if length <= shape.L_sink + shape.L_recent + shape.K:
                row[:length] = range(length)
                self.next.append(length)
                self.ends.append(len(row))
                continue
            ring = range(shape.L_sink, ring_end)
            for position in range(length):
                if position < shape.L_sink:
                    row[position] = position
                elif position >= length - shape.L_recent:
                    row[ring[(position - ring.start) % len(ring)]] = position
            row[ring_end:] = 7 % length
            self.next.append(ring[(length - ring.start) % len(ring)])
            self.ends.append(ring_end)

    def write(self, positions: Array) -> Array:
        """The cache slots of each row's first token."""
        count = positions.shape[1]
        start = self.shape.L_sink
        self.written = [
            at if at + count <= end else start for at, end in zip(self.next, self.ends, strict=True)
        ]
        for row, at, new in zip(self.slots, self.written, positions, strict=True):
            row[at : at + count] = new
        self.count = count
        return np.array(self.written)

    def accept(self, counts: Sequence[int]) -> None:
        self.next = [at + count for at, count in zip(self.written, counts, strict=True)]
        for row, at, count in zip(self.slots, self.written, counts, strict=True):
            row[at + count : at + self.count] = -1
