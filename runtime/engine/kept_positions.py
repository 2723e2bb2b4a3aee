"""Reads which prompt positions the vote kept, by cache and by layer of the model.

With head groups a layer has several caches, which keep different numbers of positions.
"""

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.contract.manifest import Manifest
from snapexport.runtime.engine.backend import Buffers, Memory

Integers = NDArray[np.int64]

UNUSED = -1


def kept_of_caches(memory: Memory, buffers: Buffers, manifest: Manifest) -> list[Integers]:
    """[Hkv,K] of each cache. buffers: outputs of the compress step."""
    held = manifest.geometry.heads_held(manifest.model.num_key_value_heads)
    return [_kept(memory, buffers, cache, heads) for cache, heads in enumerate(held)]


def kept_of_layers(memory: Memory, buffers: Buffers, manifest: Manifest) -> list[Integers]:
    """[Hkv,K] of each layer, K being the largest of its caches."""
    geometry, kept = manifest.geometry, kept_of_caches(memory, buffers, manifest)
    if not geometry.head_groups:
        return kept
    shape = manifest.model.num_key_value_heads
    layers = [np.full((shape, widest.K), UNUSED, np.int64) for widest in geometry.widest]
    for one, positions in zip(geometry.caches, kept, strict=True):
        heads = range(shape) if one.heads is None else one.heads
        layers[one.layer][list(heads), : positions.shape[1]] = positions
    return layers


def _kept(memory: Memory, buffers: Buffers, cache: int, heads: int) -> Integers:
    name = names.topk_positions(cache)
    if name not in buffers:
        return np.empty((heads, 0), np.int64)
    positions: Integers = memory.read(buffers[name])[0]
    return positions
