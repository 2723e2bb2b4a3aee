"""CalibratedVotes: what a cached key is worth to a mean query, by TriAttention (arXiv:2604.04921).

query float32 [1,H,1,D], excess float32 [1,H,P], key [1,Hkv,T,D], prompt_length int64 [1]
    -> votes float32 [1,Hkv,T].
Attributes: L_sink, L_recent (int), K (ints, [K]), as of SnapKVSelect.

query is the mean query of texts, rotated to the positions behind the prompt. The first 2P channels
of a key are P pairs that RoPE rotates. excess has, for each, E|q| - |E q|: the mean magnitude of
the queries' pair, less the magnitude of its mean. The score is

    key . query + sum over pairs of excess * |pair of key|

in standard deviations over the eligible positions, and of the query heads of a KV head the largest
one counts. The least vote is 0.
"""

from snapexport.graphs.functions.function import Function
from snapexport.graphs.functions.snapkv_select import CONSTANTS, ELIGIBLE

_TEXT = (
    """
<domain: "snapexport", opset_import: ["": 24]>
CalibratedVotes <L_sink, L_recent, K> (query, excess, key, prompt_length) => (votes)
{
"""
    + CONSTANTS
    + """
  T = Shape <start = 2, end = 3> (key)
"""
    + ELIGIBLE
    + """
  # Products [1, Hkv, T, G], the query heads folded into their KV head.
  keys = Cast <to = 1> (key)
  kv_heads = Shape <start = 0, end = 2> (key)
  head_dim = Shape <start = 3> (key)
  folded_shape = Concat <axis = 0> (kv_heads, rest, head_dim)
  folded = Reshape (query, folded_shape)
  columns = Transpose <perm = [0, 1, 3, 2]> (folded)
  products = MatMul (keys, columns)

  # The pairs' magnitudes.
  two = Constant <value_ints = [2]> ()
  none = Constant <value_ints = [0]> ()
  channels = Constant <value_ints = [3]> ()
  of_pair = Constant <value_ints = [%(of_pair)s]> ()
  pairs = Shape <start = 2> (excess)
  width = Mul (pairs, two)
  rotated = Slice (keys, none, width, channels)
  pair_shape = Concat <axis = 0> (kv_heads, T, %(shape)s)
  paired = Reshape (rotated, pair_shape)
  magnitudes = ReduceL2 <keepdims = 0> (paired, of_pair)
  excess_shape = Concat <axis = 0> (kv_heads, rest, pairs)
  folded_excess = Reshape (excess, excess_shape)
  excess_columns = Transpose <perm = [0, 1, 3, 2]> (folded_excess)
  without_direction = MatMul (magnitudes, excess_columns)
  scores = Add (products, without_direction)

  # In standard deviations over the eligible positions.
  row = Unsqueeze (is_eligible, rest)
  counted = Cast <to = 1> (row)
  eligible_count = ReduceSum <keepdims = 1> (counted)
  at_least = Constant <value_float = 1.0> ()
  count = Max (eligible_count, at_least)
  known = Where (row, scores, no_vote)
  total = ReduceSum <keepdims = 1> (known, window_axis)
  mean = Div (total, count)
  distance = Sub (scores, mean)
  apart = Where (row, distance, no_vote)
  square = Mul (apart, apart)
  squares = ReduceSum <keepdims = 1> (square, window_axis)
  variance = Div (squares, count)
  deviation = Sqrt (variance)
  tiny = Constant <value_float = 1.0e-20> ()
  divisor = Max (deviation, tiny)
  standard = Div (apart, divisor)
  best = ReduceMax <keepdims = 0> (standard, channels)
  least = ReduceMin <keepdims = 1> (best, window_axis)
  votes = Sub (best, least)
}
"""
)


def calibrated_votes(interleaved: bool) -> Function:
    """interleaved: pairs are channels 2i and 2i + 1, and not i and i + P."""
    places = (
        {"of_pair": 4, "shape": "pairs, two"}
        if interleaved
        else {"of_pair": 3, "shape": "two, pairs"}
    )
    return Function("CalibratedVotes", _TEXT % places)
