"""Functions by which a prompt's positions are voted for: SnapKVSelect, SelectVoted, QueryWindow.

The vote has five steps: each query of the window distributes attention over the keys (softmax), the
window's queries are added up (vote), neighbours share votes (pool), the query heads of a KV head
are combined (group), and the K highest positions win, ties to the lower position (SnapKV, Eq. 1 and
2; SnapStream, Eq. 3). SnapStream's Listing 6 slices by the padded length; here padding never gets
votes. Votes are summed in fp32 for every dtype.

Each option of a step is a few lines of ONNX text in the body of SnapKVSelect, which reads the
output of the step before. To add an option, add an entry to its stage. The command line imports
this module for the names, so it imports nothing heavy.
"""

from collections.abc import Mapping

from snapexport.graphs.functions import Function

_SOFTMAX = {
    # SnapStream, Eq. 3: only over the eligible positions, so that every query casts one full vote.
    "candidates": """
  bias = Where (is_eligible, no_vote, lowest)
  masked = Add (scores, bias)
  attention = Softmax <axis = -1> (masked)
""",
    # SnapKV, Listing 1: over all keys up to the query itself. A query's attention to sinks and ring
    # reduces its vote. Row i of the window is at position L - W + i.
    "causal": """
  window_size = Shape <start = 2, end = 3> (query_window)
  rows = Squeeze (window_size)
  row = Range (zero, rows, one)
  first_row = Sub (prompt_length, window_size)
  row_position = Add (first_row, row)
  row_column = Unsqueeze (row_position, rest)
  is_past = LessOrEqual (position, row_column)
  bias = Where (is_past, no_vote, lowest)
  masked = Add (scores, bias)
  attention = Softmax <axis = -1> (masked)
""",
}
"""--softmax: distributes each query's attention over keys.

scores float32 [1,H,W,T] -> attention float32 [1,H,W,T], each row summing to 1.

Masked scores get `lowest` added: a broadcasting Where takes ten times as long in ONNX Runtime.
This needs finite scores everywhere, also at sinks and padding.
"""

_VOTE = {
    # SnapKV, Eq. 1.
    "sum": """
  all_votes = ReduceSum <keepdims = 1> (attention, window_axis)
""",
    # KV-Compress (arXiv:2410.00161): one query of high attention outweighs many of low attention.
    "sum-squares": """
  all_votes = ReduceSumSquare <keepdims = 1> (attention, window_axis)
""",
}
"""--vote: adds up the votes of the window's queries. [1,H,W,T] -> all_votes [1,H,1,T]."""

_POOL = {
    # As in SnapKV's code and in SnapStream.
    "avg": """
  pooled = AveragePool <kernel_shape = %(kernel)s, auto_pad = "SAME_UPPER",
                        count_include_pad = 1> (votes)
""",
    # As in SnapKV's paper. Zero padding changes nothing, since votes are never negative.
    "max": """
  pooled = MaxPool <kernel_shape = %(kernel)s, auto_pad = "SAME_UPPER"> (votes)
""",
}
"""--pool: spreads votes over P neighbouring positions. votes [1,H,1,T] -> pooled [1,H,1,T].

Votes are zero outside the eligible positions, so pooling over all positions equals pooling over the
eligible ones with zero padding. count_include_pad = 1 counts the padding in a mean, as SnapKV does.

`%(kernel)s` becomes [1, P]. TensorRT's parser reads kernel_shape only from a literal: it does not
resolve a reference to the function's attribute there.
"""

_GROUP = {
    "mean": """
  group_vote = ReduceMean <keepdims = 0> (grouped, window_axis)
""",
    # One query head's high vote keeps a position, whatever the other heads vote.
    "max": """
  group_vote = ReduceMax <keepdims = 0> (grouped, window_axis)
""",
    # Ranks as the mean does; KV-Compress and SnapKV use the sum.
    "sum": """
  group_vote = ReduceSum <keepdims = 0> (grouped, window_axis)
""",
}
"""--group: combines the votes of a KV head's G query heads. [1,Hkv,G,T] -> group_vote [1,Hkv,T].

Each KV head keeps one set of positions. Grouping comes after pooling, as in kvpress.
"""

STAGES = {"softmax": _SOFTMAX, "vote": _VOTE, "pool": _POOL, "group": _GROUP}

DEFAULTS = {"softmax": "causal", "vote": "sum-squares", "pool": "avg", "group": "mean"}
"""Not SnapStream's vote (candidates, sum): squares of the model's own attention kept more."""

CONSTANTS = """  s = Constant <value_int: int = @L_sink> ()
  R = Constant <value_int: int = @L_recent> ()
  k = Constant <value_ints: ints = @K> ()
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  window_axis = Constant <value_ints = [2]> ()
  no_vote = Constant <value_float = 0.0> ()
"""

ELIGIBLE = """  length = Squeeze (T)
  position = Range (zero, length, one)
  end = Sub (prompt_length, R)
  after_sinks = GreaterOrEqual (position, s)
  before_ring = Less (position, end)
  is_outside = And (after_sinks, before_ring)
  window = Add (s, R)
  S = Add (window, k)
  is_compressed = Greater (prompt_length, S)
  is_eligible = And (is_outside, is_compressed)
"""

SCORES = """
  # Scores [1, H, W, T], the query heads folded into their KV head for the product.
  rest = Constant <value_ints = [-1]> ()
  lowest = Constant <value_float = -3.0e38> ()
  kv_heads = Shape <start = 0, end = 2> (key)
  head_dim = Shape <start = 3> (key)
  folded_shape = Concat <axis = 0> (kv_heads, rest, head_dim)
  folded = Reshape (query_window, folded_shape)
  factor32 = Constant <value_float: float = @scale> ()
  factor = CastLike (factor32, key)
  scaled = Mul (folded, factor)
  # The keys come first, so that no transposed copy of them is made.
  columns = Transpose <perm = [0, 1, 3, 2]> (scaled)
  by_position = MatMul (key, columns)
  products = Transpose <perm = [0, 1, 3, 2]> (by_position)
  folded_scores = Cast <to = 1> (products)
  per_query = Shape <start = 0, end = 3> (query_window)
  per_query_shape = Concat <axis = 0> (per_query, T)
%(scores)s
"""

KEPT = """
  # The K highest, in the order of their positions; T marks an unused entry, and sorts last.
  ineligible = Constant <value_float = -1.0> ()
  unused = Constant <value_int = -1> ()
  eligible = Where (is_eligible, group_vote, ineligible)
  best, chosen = TopK <axis = -1, largest = 1, sorted = 1> (eligible, k)
  is_none = Less (best, no_vote)
  marked = Where (is_none, T, chosen)
  ascending, order = TopK <axis = -1, largest = 0, sorted = 1> (marked, k)
  past_end = Equal (ascending, T)
  topk_positions = Where (past_end, unused, ascending)
}
"""

_PLAIN = "  scores = Reshape (folded_scores, per_query_shape)"

_SOFTCAPPED = """  uncapped = Reshape (folded_scores, per_query_shape)
  softcap = Constant <value_float: float = @softcap> ()
  capped = Div (uncapped, softcap)
  bent = Tanh (capped)
  scores = Mul (bent, softcap)"""

_SNAPKV_SELECT = (
    """
<domain: "snapexport", opset_import: ["": 24]>
SnapKVSelect <L_sink, L_recent, K, pool_kernel, scale, softcap, softmax, vote, pool, group>
    (query_window, key, prompt_length) => (topk_positions)
{
"""
    + CONSTANTS
    + """
  # The eligible positions: s <= position < L - R, if L > S.
  T = Shape <start = 2, end = 3> (key)
"""
    + ELIGIBLE
    + SCORES
    + """
  # --softmax
%(softmax)s
  # --vote; only eligible positions get votes
%(vote)s
  eligibility = Cast <to = 1> (is_eligible)
  votes = Mul (all_votes, eligibility)

  # --pool
%(pool)s
  # --group
  grouped_shape = Concat <axis = 0> (kv_heads, rest, T)
  grouped = Reshape (pooled, grouped_shape)
%(group)s"""
    + KEPT
)
"""SnapKVSelect: the prompt positions that the observation window votes to keep (SnapKV, top-k).

query_window [1,H,W,D], key [1,Hkv,T,D], prompt_length int64 [1]
    -> topk_positions int64 [1,Hkv,K], ascending, -1 where unused.
Attributes: L_sink, L_recent (int), K (ints, [K]), pool_kernel (ints, [1, P]), scale and softcap
(float, 0: none), and the names of the vote's options (softmax, vote, pool, group). The body in a
graph is written for that graph's options and pool kernel; a plugin reads both from the attributes.
"""


def snapkv_select(choices: Mapping[str, str], pool_kernel: int, softcapped: bool) -> Function:
    """choices: an option of each stage of STAGES. softcapped: whether the model caps its scores."""
    stages = {stage: options[choices[stage]] for stage, options in STAGES.items()}
    stages["pool"] = pool_text(choices, pool_kernel)
    text = _SNAPKV_SELECT % (stages | {"scores": scores_text(softcapped)})
    return Function("SnapKVSelect", text, votes=True)


def pool_text(choices: Mapping[str, str], pool_kernel: int) -> str:
    """The stage `pool`."""
    return STAGES["pool"][choices["pool"]] % {"kernel": f"[1, {pool_kernel}]"}


def scores_text(softcapped: bool) -> str:
    """The end of SCORES."""
    return _SOFTCAPPED if softcapped else _PLAIN


_SELECT_VOTED = (
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
"""SelectVoted: keeps the positions with the highest votes, which a method has counted.

largest float32 [1,Hkv,T], prompt_length int64 [1]
    -> topk_positions int64 [1,Hkv,K], ascending, -1 where unused.
Attributes: L_sink, L_recent (int), K (ints, [K]), pool_kernel (ints, [1, P]). It is the end of
SnapKVSelect: pool, then keep the K highest of the eligible positions.
"""


def select_voted(choices: Mapping[str, str], pool_kernel: int) -> Function:
    """choices: an option of each stage. SelectVoted has only the stage `pool`."""
    return Function("SelectVoted", _SELECT_VOTED % {"pool": pool_text(choices, pool_kernel)})


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
"""QueryWindow: the queries of a chunk's last W valid tokens.

query [1,H,C,D], chunk_length int64 [1] -> query_window [1,H,W,D]. Attributes: L_obs (ints, [W]).

A chunk of fewer than W tokens repeats its first query. This is harmless: so short a prompt has no
eligible positions.
"""
