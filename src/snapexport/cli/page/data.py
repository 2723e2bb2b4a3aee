"""What the page's script works on, small enough for a prompt of 131,072 tokens.

A bit for each position says whether a KV head kept it; arrays are deflated and written as base64.
"""

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.cli.page.prompt import TokenizedPrompt
from snapexport.contract.geometry import CacheGeometry, LayerGeometry

Positions = NDArray[np.int64]


def page_data(
    prompt: TokenizedPrompt, geometry: CacheGeometry, kept: Sequence[Positions]
) -> dict[str, Any]:
    """kept: for each layer the voted positions [Hkv, K], -1 where unused; none for a full cache.

    spans: uint32 [spans, 3], see TokenizedPrompt. bits: uint8 [layers, Hkv, ceil(tokens / 8)], the
    first position in the lowest bit.
    """
    length = len(prompt.offsets)
    return {
        "text": prompt.text,
        "tokens": length,
        "bare": prompt.bare(),
        "spans": packed(prompt.spans()),
        "heads": len(kept[0]) if kept else 0,
        "layers": [layer_regions(place, length) for place in geometry.layers] if kept else [],
        "bits": packed(kept_bits(kept, length)),
    }


def layer_regions(place: LayerGeometry, length: int) -> dict[str, int]:
    """Positions below `sinks` are sinks, those from `ring` on are in the ring."""
    sinks = min(place.L_sink, length)
    return {
        "sinks": sinks,
        "ring": max(sinks, length - place.L_recent),
        "slots": place.cache_slots,
        "K": place.K,
        "kept": place.kept(length),
    }


def kept_bits(kept: Sequence[Positions], length: int) -> NDArray[np.uint8]:
    """[layers, Hkv, ceil(length / 8)]: a bit for each position."""
    heads = len(kept[0]) if kept else 0
    bits = np.zeros((len(kept), heads, -(-length // 8)), np.uint8)
    for layer, positions in enumerate(kept):
        for head, row in enumerate(positions):
            held = np.zeros(length, bool)
            held[row[row >= 0]] = True
            bits[layer, head] = np.packbits(held, bitorder="little")
    return bits


def packed(array: NDArray[Any]) -> str:
    """The array's little-endian bytes, deflated, as base64."""
    raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return base64.b64encode(zlib.compress(raw, 9)).decode()
