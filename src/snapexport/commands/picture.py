"""What a prompt kept, as a picture in the terminal: a row per layer and KV head."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from snapexport.contract.geometry import CacheGeometry, LayerGeometry

SHADES = " ·░▒▓█"
SINK, RING, KEPT = "cyan", "green", "yellow"
MOST_ROWS = 64


def kept_picture(
    geometry: CacheGeometry, kept: Sequence[NDArray[np.int64]], prompt_length: int, width: int = 64
) -> list[Text]:
    """Lines to print: the darker a column, the more of its positions are in the cache.

    kept: for each layer the voted positions [Hkv, K], -1 where unused.
    """
    rows = [
        (f"layer {layer:2d} head {head:2d} ", place, positions[positions >= 0])
        for layer, place in enumerate(geometry.layers)
        for head, positions in enumerate(kept[layer])
    ]
    lines = [_row(name, place, positions, prompt_length, width) for name, place, positions in rows]
    hidden = len(lines) - MOST_ROWS
    more = [Text(f"(and {hidden} more layers and heads: --json has all)")] if hidden > 0 else []
    return [_scale(prompt_length, width), *lines[:MOST_ROWS], *more, _legend()]


def _row(name: str, place: LayerGeometry, kept: NDArray[np.int64], length: int, width: int) -> Text:
    window = [p for p in place.source_positions(length) if p >= 0]
    share = _share([*window, *kept.tolist()], length, width)
    line = Text(name)
    for column, part in enumerate(share):
        middle = (column + 0.5) * length / width
        line.append(_shade(part), style=_style(place, middle, length))
    return line


def _share(positions: list[int], length: int, width: int) -> NDArray[np.float64]:
    """Of the positions in each column, the part that is held."""
    edges = np.linspace(0, length, width + 1)
    held, _ = np.histogram(positions, edges)
    there, _ = np.histogram(np.arange(length), edges)
    share: NDArray[np.float64] = held / np.maximum(there, 1)
    return share


def _shade(part: float) -> str:
    return SHADES[int(np.ceil(part * (len(SHADES) - 1)))]


def _style(place: LayerGeometry, position: float, length: int) -> str:
    if position < place.L_sink:
        return SINK
    return RING if position >= length - place.L_recent else KEPT


def _scale(length: int, width: int) -> Text:
    left, right = "position 0".ljust(17), str(length - 1)
    return Text(left + right.rjust(width), style="dim")


def _legend() -> Text:
    legend = Text("held: ")
    for name, style in (("sinks", SINK), ("kept by the vote", KEPT), ("ring", RING)):
        legend.append(f"█ {name}  ", style=style)
    return legend.append("darker: more of the column's positions", style="dim")
