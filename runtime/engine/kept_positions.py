"""Reads which prompt positions the vote kept, by cache and by layer of the model.

With head groups a layer has several caches, which keep different numbers of positions.
"""

from collections.abc import Mapping

import numpy as np

from snapexport.contract import names
from snapexport.contract.manifest import Manifest
from snapexport.runtime.arrays import Integers
from snapexport.runtime.engine.backend import Buffers, Memory
from snapexport.runtime.engine.loaded import Loaded

UNUSED = -1


def kept_of_caches(memory: Memory, buffers: Buffers, manifest: Manifest) -> list[Integers]:
    """[Hkv,K] of each cache. buffers: outputs of the compress step."""
    caches, kv_heads = manifest.geometry.slots.caches, manifest.model.kv_heads
    return [
        _kept(memory, buffers, cache.cache, cache.count(kv_heads[cache.layer])) for cache in caches
    ]


def kept_of_layers(memory: Memory, buffers: Buffers, manifest: Manifest) -> list[Integers]:
    """[Hkv,K] of each layer with a cache, K being the largest of its caches."""
    geometry, kept = manifest.geometry, kept_of_caches(memory, buffers, manifest)
    if not geometry.slots.head_groups:
        return kept
    kv_heads, *_ = manifest.model.kv_heads
    widest = geometry.widest.values()
    layers = [np.full((kv_heads, one.K), UNUSED, np.int64) for one in widest]
    for one, positions in zip(geometry.slots.caches, kept, strict=True):
        heads = range(kv_heads) if one.heads is None else one.heads
        layers[one.layer][list(heads), : positions.shape[1]] = positions
    return layers


def _kept(memory: Memory, buffers: Buffers, cache: int, heads: int) -> Integers:
    name = names.topk_positions(cache)
    if name not in buffers:
        return np.empty((heads, 0), np.int64)
    positions: Integers = memory.read(buffers[name])[0]
    return positions


def slot_positions(loaded: Loaded, kept: Buffers, prompt_length: int) -> Mapping[str, Integers]:
    """The position that each cache slot holds after prefill, [1,Hkv,S], by extend's input names.

    kept: outputs of the compress step.
    """
    by_cache = kept_of_caches(loaded.backend.memory, kept, loaded.manifest)
    found = dict[str, Integers]()
    geometry = loaded.manifest.geometry
    caches = zip(geometry.slots.caches, geometry.layers, by_cache, strict=True)
    for one, shape, positions in caches:
        heads = [shape.source_positions(prompt_length, row) for row in positions.tolist()]
        found[names.slot_positions(one.cache)] = np.array([heads], np.int64)
    return found
