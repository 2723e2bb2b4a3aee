"""How all pictures look. Loads no plotting library."""

from typing import Any

STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "snapexport",
    "figure.dpi": 150,
}
# Okabe and Ito's colours, which people who see fewer of them can distinguish; so do markers. One
# marker more than colours: no two of the first 56 lines look alike.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
