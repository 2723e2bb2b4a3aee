"""QueryWindow: the queries of a chunk's last W valid tokens.

query [1,H,C,D], chunk_length int64 [1] -> query_window [1,H,W,D]. Attributes: L_obs (ints, [W]).

A chunk of fewer than W tokens repeats its first query. This is harmless: so short a prompt has no
eligible positions.
"""

from snapexport.graphs.functions.function import Function

QUERY_WINDOW = Function(
    "QueryWindow",
    """
<domain: "snapexport", opset_import: ["": 24]>
QueryWindow <L_obs> (query, chunk_length) => (query_window)
{
  W = Constant <value_ints: ints = @L_obs> ()
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  width = Squeeze (W)
  offsets = Range (zero, width, one)
  first = Sub (chunk_length, W)
  rows = Add (first, offsets)
  clipped = Max (rows, zero)
  query_window = Gather <axis = 2> (query, clipped)
}
""",
)
