"""Counts how many KV heads hold each position of a prompt. Knows no graph and no request."""

from collections.abc import Mapping

import numpy as np

from snapexport.contract import names
from snapexport.contract.geometry import CacheGeometry
from snapexport.runtime.engine.backend import Floats, Integers


def held_shares(
    positions: Mapping[str, Integers], geometry: CacheGeometry, prompt_length: int
) -> Floats:
    """The share of the KV heads that hold each position, fp32 [prompt_length].

    positions: of each cache slot, [1,Hkv,S], -1 where empty, by extend's input names. Caches of
    layers with a window of their own count only where there are no others.
    """
    shapes = zip(geometry.slots.caches, geometry.layers, strict=True)
    every = [(positions[names.slot_positions(one.cache)][0], shape) for one, shape in shapes]
    counted = [held for held, shape in every if shape.L_sink or shape.K]
    counts, heads = np.zeros(prompt_length, np.int64), 0
    for held in counted or [held for held, _ in every]:
        heads += len(held)
        counts += np.bincount(held[held >= 0], minlength=prompt_length)
    return (counts / max(1, heads)).astype(np.float32)
