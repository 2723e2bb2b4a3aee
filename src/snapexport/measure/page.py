"""Writes the kept positions of a prompt as one HTML file that needs no network and no other file.

The prompt is laid out in spans. A span is the least run of characters that whole tokens cover:
mostly one token, but the bytes of one emoji may be four tokens. A token without characters (a BOS)
is an empty span. The data stays small for a prompt of 131,072 tokens: one bit says whether a KV
head kept a position, and arrays are deflated and written as base64. assets/page.html is filled with
facts for people and data for the script, all escaped.
"""

import base64
import html
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry


class Span(NamedTuple):
    """Characters [start, end) of the prompt, and the number of tokens that share them."""

    start: int
    end: int
    tokens: int


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt and its tokens. offsets: for each token its [start, end) in characters."""

    text: str
    offsets: tuple[tuple[int, int], ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, text: str, encoding: Encoding) -> "TokenizedPrompt":
        """A prompt as the runtime's tokenizer encoded it."""
        return cls(text, tuple(encoding.offsets), tuple(encoding.tokens))

    def spans(self) -> NDArray[np.uint32]:
        """[spans, 3]: start, end and number of tokens.

        Characters are counted in UTF-16 units, as in JavaScript.
        """
        table = np.array(_spans(self.offsets), np.int64).reshape(-1, 3)
        table[:, :2] = _utf16_units(self.text)[table[:, :2]]
        return table.astype(np.uint32)

    def bare(self) -> dict[int, str]:
        """The tokens without characters, by index."""
        return {
            index: name
            for index, (name, (start, end)) in enumerate(zip(self.names, self.offsets, strict=True))
            if start >= end
        }


def _spans(offsets: Iterable[tuple[int, int]]) -> list[Span]:
    """Spans of all tokens, in order. No two overlap."""
    spans: list[Span] = []
    for start, end in offsets:
        here = spans[-1].end if spans else 0
        span = Span(start, end, 1) if start < end else Span(here, here, 1)
        while spans and spans[-1].end > span.start:
            span = _union(spans.pop(), span)
        spans.append(span)
    return spans


def _union(left: Span, right: Span) -> Span:
    return Span(min(left.start, right.start), max(left.end, right.end), left.tokens + right.tokens)


def _utf16_units(text: str) -> NDArray[np.int64]:
    """The number of UTF-16 units before each character, and before the text's end."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return np.concatenate([[0], np.cumsum(1 + (points > 0xFFFF))])


Positions = NDArray[np.int64]


def page_data(
    prompt: TokenizedPrompt, geometry: CacheGeometry, kept: Sequence[Positions]
) -> dict[str, Any]:
    """For JSON. kept: for each layer with a cache the voted positions [Hkv, K], -1 where unused;
    none for a full cache.

    spans: uint32 [spans, 3], see TokenizedPrompt. heads: the most of a layer. bits: uint8 [layers,
    heads, ceil(tokens / 8)], the first position in the lowest bit.
    """
    length = len(prompt.offsets)
    layers = zip(geometry.narrowest.values(), kept, strict=True) if kept else ()
    return {
        "text": prompt.text,
        "tokens": length,
        "bare": prompt.bare(),
        "spans": pack(prompt.spans()),
        "heads": max(map(len, kept), default=0),
        "layers": [
            layer_regions(place, length) | {"heads": len(of_layer)} for place, of_layer in layers
        ],
        "bits": pack(kept_bits(kept, length)),
    }


def layer_regions(place: LayerGeometry, length: int) -> dict[str, int]:
    """Positions below `sinks` are sinks, those from `ring` on are in the ring."""
    return {
        "sinks": min(place.L_sink, length),
        "ring": place.oldest_recent(length),
        "slots": place.cache_slots,
        "K": place.K,
        "kept": place.kept(length),
    }


def kept_bits(kept: Sequence[Positions], length: int) -> NDArray[np.uint8]:
    """[layers, heads, ceil(length / 8)]: a bit for each position. heads: the most of a layer."""
    heads = max(map(len, kept), default=0)
    bits = np.zeros((len(kept), heads, -(-length // 8)), np.uint8)
    for layer, positions in enumerate(kept):
        for head, row in enumerate(positions):
            held = np.zeros(length, bool)
            held[row[row >= 0]] = True
            bits[layer, head] = np.packbits(held, bitorder="little")
    return bits


def pack(array: NDArray[Any]) -> str:
    """The array's little-endian bytes, deflated, as base64."""
    raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return base64.b64encode(zlib.compress(raw, 9)).decode()


_SCRIPTS = "prompt.js", "page.js"

# "<" would open or end an element inside <script>; the others do not belong in an HTML file.
_NOT_IN_HTML = re.compile("[<\x7f-\x9f\u2028\u2029\ufdd0-\ufdef\ufeff\ufffe\uffff]")


def render(
    title: str, prompt: TokenizedPrompt, geometry: CacheGeometry, kept: Sequence[Positions]
) -> str:
    """The whole page. kept: as in `page_data`."""
    length = len(prompt.offsets)
    parts = {
        "title": html.escape(title),
        "verdict": html.escape(_verdict(geometry, length, kept)),
        "facts": _facts(geometry, length, kept),
        "full": "" if kept else "full",
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
        "data": _json(page_data(prompt, geometry, kept)),
    }
    # In one pass, since a prompt may contain what looks like a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (files("snapexport.measure") / "assets" / name).read_text("utf-8")


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _NOT_IN_HTML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _verdict(geometry: CacheGeometry, length: int, kept: Sequence[Positions]) -> str:
    """Say in a sentence how much of the prompt is kept."""
    if not kept:
        return "The cache is the full one: every position is kept, by every head of every layer."
    regions = [layer_regions(place, length) for place in geometry.narrowest.values()]
    held = [
        region["sinks"] + length - region["ring"] + int((row >= 0).sum())
        for region, of_layer in zip(regions, kept, strict=True)
        for row in of_layer
    ]
    if min(held) == length:
        return f"All {length:,} positions are held: nothing was dropped."
    part = f"{100 * sum(held) / len(held) / length:.3g} %"
    return f"A KV head holds {_spell_range(held)} of {length:,} positions, on average {part}."


def _facts(geometry: CacheGeometry, length: int, kept: Sequence[Positions]) -> str:
    facts = {"prompt": f"{length:,} tokens", "policy": geometry.policy}
    if kept:
        facts |= _cache_facts(geometry, length, _spell_range(map(len, kept)))
    rows = (
        f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts.items()
    )
    return "\n".join(rows)


def _cache_facts(geometry: CacheGeometry, length: int, heads: str) -> dict[str, str]:
    layers = geometry.narrowest.values()
    facts = {
        "layers × KV heads": f"{len(layers)} × {heads}",
        "cache slots of a head": _spell_range(shape.cache_slots for shape in geometry.layers),
        "sinks": _spell_range(place.L_sink for place in layers),
        "ring": _spell_range(len(place.ring(length)) - place.spare for place in layers),
        "kept by vote": _spell_range(shape.kept(length) for shape in geometry.layers),
    }
    if any(place.K for place in layers):
        who, counted = geometry.vote.words
        facts |= {"voters": who, "pool P": f"{geometry.vote.pool_kernel}", "vote": counted}
    return facts


def _spell_range(values: Iterable[int]) -> str:
    """One number where all are the same."""
    ordered = sorted(values)
    least, most = ordered[0], ordered[-1]
    return f"{least:,}" if least == most else f"{least:,}–{most:,}"
