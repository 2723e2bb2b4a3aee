"""Fills assets/template.html with facts for people and data for the script, all escaped."""

import html
import json
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from snapexport.contract.geometry import CacheGeometry
from snapexport.measure.page.data import Positions, TokenizedPrompt, layer_regions, page_data

_SCRIPTS = "tokens.js", "text.js", "note.js", "strip.js", "page.js"

# "<" would open or end an element inside <script>; the others do not belong in an HTML file.
_NOT_IN_HTML = re.compile("[<\x7f-\x9f\u2028\u2029\ufdd0-\ufdef\ufeff\ufffe\uffff]")


def render(
    title: str, prompt: TokenizedPrompt, geometry: CacheGeometry, kept: Sequence[Positions]
) -> str:
    """The whole page. kept: as in `page_data`."""
    length = len(prompt.offsets)
    parts = {
        "title": html.escape(title),
        "verdict": html.escape(_verdict(geometry, length, bool(kept))),
        "facts": _facts(geometry, length, kept),
        "full": "" if kept else "full",
        "style": _asset("page.css"),
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
        "data": _json(page_data(prompt, geometry, kept)),
    }
    # In one pass, since a prompt may contain what looks like a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("template.html"))


def _asset(name: str) -> str:
    return (files("snapexport.measure.page") / "assets" / name).read_text("utf-8")


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _NOT_IN_HTML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _verdict(geometry: CacheGeometry, length: int, compressed: bool) -> str:
    """Say in a sentence how much of the prompt is kept."""
    if not compressed:
        return "The cache is the full one: every position is kept, by every head of every layer."
    regions = [layer_regions(place, length) for place in geometry.widest.values()]
    held = [region["sinks"] + length - region["ring"] + region["kept"] for region in regions]
    if min(held) == length:
        return f"All {length:,} positions are held: nothing was dropped."
    part = f"{100 * sum(held) / len(held) / length:.3g} %"
    return f"A KV head holds {_span(held)} of {length:,} positions, on average {part}."


def _facts(geometry: CacheGeometry, length: int, kept: Sequence[Positions]) -> str:
    facts = {"prompt": f"{length:,} tokens", "policy": geometry.policy}
    if kept:
        facts |= _cache_facts(geometry, length, _span(map(len, kept)))
    rows = (
        f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts.items()
    )
    return "\n".join(rows)


def _cache_facts(geometry: CacheGeometry, length: int, heads: str) -> dict[str, str]:
    layers = geometry.widest.values()
    facts = {
        "layers × KV heads": f"{len(layers)} × {heads}",
        "cache slots of a layer": _span(place.cache_slots for place in layers),
        "sinks": _span(place.L_sink for place in layers),
        "ring": _span(len(place.ring(length)) - place.spare for place in layers),
        "kept by vote": _span(place.kept(length) for place in layers),
    }
    if any(place.K for place in layers):
        who, counted = geometry.vote.words
        facts |= {"voters": who, "pool P": f"{geometry.vote.pool_kernel}", "vote": counted}
    return facts


def _span(values: Iterable[int]) -> str:
    """One number where all are the same."""
    ordered = sorted(values)
    least, most = ordered[0], ordered[-1]
    return f"{least:,}" if least == most else f"{least:,}–{most:,}"
