"""Draws the kept positions of a prompt in the terminal, a row for each layer and KV head.

A row needs no colour: an S for the sinks, columns of the positions between sinks and ring, a bar,
and the ring.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry

SHADES = " ·░▒▓█"
SINK, RING, KEPT = "cyan", "green", "yellow"
SINK_MARK, BAR, RING_MARK = "S", "|", "="
MOST_ROWS = 64
_NAME = "layer {:2d} head {:2d} "


def picture_width(terminal: int) -> int:
    """Columns of positions in a row: 64, if they fit on a terminal of `terminal` columns."""
    return max(16, min(64, terminal - len(_NAME.format(0, 0)) - len(SINK_MARK + BAR)))


def kept_picture(
    geometry: CacheGeometry, kept: Sequence[NDArray[np.int64]], prompt_length: int, width: int
) -> list[Text]:
    """Lines to print. A darker column has more of its positions in the cache.

    kept: for each layer with a cache the voted positions [Hkv, K], -1 where unused.
    """
    rows = [
        (_NAME.format(layer, head), place, positions[positions >= 0])
        for (layer, place), of_layer in zip(geometry.narrowest.items(), kept, strict=True)
        for head, positions in enumerate(of_layer)
    ]
    lines = [_row(*row, prompt_length, width) for row in rows[:MOST_ROWS]]
    hidden = len(rows) - MOST_ROWS
    more = [Text(f"(and {hidden} more heads: `inspect --json` lists all)")] if hidden > 0 else []
    return [_scale(prompt_length, lines), *lines, *more, _legend()]


def _row(name: str, place: LayerGeometry, kept: NDArray[np.int64], length: int, width: int) -> Text:
    voted, ring = _regions(place, length)
    voted_columns, ring_columns = _columns(len(voted), len(ring), width)
    line = Text(name).append(SINK_MARK if place.L_sink else " ", style=SINK)
    for part in _shares(kept, voted, voted_columns):
        line.append(_shade(part), style=KEPT)
    return line.append(BAR).append(RING_MARK * ring_columns, style=RING)


def _regions(place: LayerGeometry, length: int) -> tuple[range, range]:
    """The prompt's positions after the sinks: the eligible ones, and the ring's."""
    sinks_end, ring_start = min(place.L_sink, length), place.oldest_recent(length)
    return range(sinks_end, ring_start), range(ring_start, length)


def _columns(voted: int, ring: int, width: int) -> tuple[int, int]:
    """Columns of both regions, in proportion: at least one each, and at most one a position."""
    width = min(width, voted + ring)
    if not voted or not ring:
        return (width, 0) if voted else (0, width)
    ring_columns = max(1, min(width - 1, round(width * ring / (voted + ring))))
    return width - ring_columns, ring_columns


def _shares(kept: NDArray[np.int64], voted: range, columns: int) -> NDArray[np.float64]:
    """The share of each column's positions that was kept."""
    if not columns:
        return np.zeros(0)
    # In whole numbers: both counts must put a position on an edge into the same column.
    there, held = (
        np.bincount((positions - voted.start) * columns // len(voted), minlength=columns)
        for positions in (np.array(voted), kept)
    )
    share: NDArray[np.float64] = held / there
    return share


def _shade(part: float) -> str:
    return SHADES[int(np.ceil(part * (len(SHADES) - 1)))]


def _scale(length: int, rows: list[Text]) -> Text:
    left, right = "position 0".ljust(len(_NAME.format(0, 0))), str(length - 1)
    width = max((len(row) for row in rows), default=0) - len(left)
    return Text(left + right.rjust(width), style="dim")


def _legend() -> Text:
    legend = Text("held: ").append(SINK_MARK, style=SINK).append(" sinks  ")
    legend.append(SHADES.strip(), style=KEPT).append(" kept by the vote, darker: more of a column")
    return legend.append("  " + BAR).append(RING_MARK * 3, style=RING).append(" ring")
