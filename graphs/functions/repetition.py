"""Two functions for the votes of a repeated prompt, after KVzip (arXiv:2505.23416, Eq. 2).

The prompt is fed again behind itself, a chunk at a time. A position is worth the largest attention
that any repeated token gives it: what the model needs in order to write the prompt once more.

RepetitionVotes: query_window [1,H,n,D], key [1,Hkv,T,D], prompt_length int64 [1]
    -> largest float32 [1,Hkv,T].
Attributes: first_row (int), scale and softcap (float, 0: none). Row i of the queries is at position
L + first_row + i, and attends to all positions up to its own.

SelectVoted: largest float32 [1,Hkv,T], prompt_length int64 [1]
    -> topk_positions int64 [1,Hkv,K], ascending, -1 where unused.
Attributes: L_sink, L_recent (int), K (ints, [K]), pool_kernel (ints, [1, P]). As the end of
SnapKVSelect: pool, then keep the K highest of the eligible positions. KVzip does not pool.
"""

from collections.abc import Mapping

from snapexport.graphs.functions.function import Function
from snapexport.graphs.functions.snapkv_select import (
    CONSTANTS,
    ELIGIBLE,
    KEPT,
    SCORES,
    pool_text,
    scores_text,
)

_VOTES = (
    """
<domain: "snapexport", opset_import: ["": 24]>
RepetitionVotes <first_row, scale, softcap> (query_window, key, prompt_length) => (largest)
{
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  rest = Constant <value_ints = [-1]> ()
  window_axis = Constant <value_ints = [2]> ()
  no_vote = Constant <value_float = 0.0> ()
  lowest = Constant <value_float = -3.0e38> ()
  T = Shape <start = 2, end = 3> (key)
"""
    + SCORES
    + """
  # Attention to all positions up to each query's own.
  length = Squeeze (T)
  position = Range (zero, length, one)
  window_size = Shape <start = 2, end = 3> (query_window)
  rows = Squeeze (window_size)
  row = Range (zero, rows, one)
  offset = Constant <value_int: int = @first_row> ()
  first_position = Add (prompt_length, offset)
  row_position = Add (first_position, row)
  row_column = Unsqueeze (row_position, rest)
  is_seen = LessOrEqual (position, row_column)
  bias = Where (is_seen, no_vote, lowest)
  masked = Add (scores, bias)
  attention = Softmax <axis = -1> (masked)
  # Of all rows, and of all query heads of a KV head.
  grouped_shape = Concat <axis = 0> (kv_heads, rest, T)
  grouped = Reshape (attention, grouped_shape)
  largest = ReduceMax <keepdims = 0> (grouped, window_axis)
}
"""
)

_SELECT = (
    """
<domain: "snapexport", opset_import: ["": 24]>
SelectVoted <L_sink, L_recent, K, pool_kernel> (largest, prompt_length) => (topk_positions)
{
"""
    + CONSTANTS
    + """
  # The eligible positions: s <= position < L - R, if L > S.
  T = Shape <start = 2, end = 3> (largest)
"""
    + ELIGIBLE
    + """
  eligibility = Cast <to = 1> (is_eligible)
  all_votes = Unsqueeze (largest, window_axis)
  votes = Mul (all_votes, eligibility)

  # --pool
%(pool)s
  group_vote = Squeeze (pooled, window_axis)"""
    + KEPT
)


def repetition_votes(softcapped: bool) -> Function:
    """softcapped: whether the model caps its scores."""
    return Function("RepetitionVotes", _VOTES % {"scores": scores_text(softcapped)})


def select_voted(choices: Mapping[str, str], pool_kernel: int) -> Function:
    """choices: by stage, of which `pool` counts."""
    return Function("SelectVoted", _SELECT % {"pool": pool_text(choices, pool_kernel)})
