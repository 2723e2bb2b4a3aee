"""SnapKVSelect: the prompt positions that the observation window votes to keep (SnapKV, top-k).

query_window [1,H,W,D], key [1,Hkv,T,D], prompt_length int64 [1]
    -> topk_positions int64 [1,Hkv,K], ascending, -1 where unused.
Attributes: L_sink, L_recent (int), K (ints, [K]), pool_kernel (ints, [1, P]), scale and softcap
(float, 0: none), and the names of the vote's options (softmax, vote, pool, group). The body in a
graph is written for that graph's options and pool kernel; a plugin reads both from the attributes.

The vote has five steps: each query of the window distributes attention over the keys (softmax), the
window's queries are added up (vote), neighbours share votes (pool), the query heads of a KV head
are combined (group), and the K highest positions win, ties to the lower position (SnapKV, Eq. 1 and
2; SnapStream, Eq. 3). SnapStream's Listing 6 slices by the padded length; here padding never gets
votes. Votes are summed in fp32 for every dtype.
"""

from collections.abc import Mapping

from snapexport.graphs.functions.function import Function
from snapexport.graphs.functions.vote import STAGES

_HEAD = """
<domain: "snapexport", opset_import: ["": 24]>
SnapKVSelect <L_sink, L_recent, K, pool_kernel, scale, softcap, softmax, vote, pool, group>
    (query_window, key, prompt_length) => (topk_positions)
{
"""

CONSTANTS = """  s = Constant <value_int: int = @L_sink> ()
  R = Constant <value_int: int = @L_recent> ()
  k = Constant <value_ints: ints = @K> ()
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  unused = Constant <value_int = -1> ()
  rest = Constant <value_ints = [-1]> ()
  window_axis = Constant <value_ints = [2]> ()
  no_vote = Constant <value_float = 0.0> ()
  ineligible = Constant <value_float = -1.0> ()
  lowest = Constant <value_float = -3.0e38> ()
"""

_POSITIONS = """
  # The eligible positions: s <= position < L - R, if L > S.
  T = Shape <start = 2, end = 3> (key)
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

_VOTES = """
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

KEPT = """
  # The K highest, in the order of their positions; T marks an unused entry, and sorts last.
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


_TEXT = _HEAD + CONSTANTS + _POSITIONS + ELIGIBLE + SCORES + _VOTES + KEPT


def snapkv_select(choices: Mapping[str, str], pool_kernel: int, softcapped: bool) -> Function:
    """choices: an option of each stage of STAGES. softcapped: whether the model caps its scores."""
    stages = {stage: options[choices[stage]] for stage, options in STAGES.items()}
    stages["pool"] = pool_text(choices, pool_kernel)
    return Function("SnapKVSelect", _TEXT % (stages | {"scores": scores_text(softcapped)}))


def pool_text(choices: Mapping[str, str], pool_kernel: int) -> str:
    """The stage `pool`."""
    return STAGES["pool"][choices["pool"]] % {"kernel": f"[1, {pool_kernel}]"}


def scores_text(softcapped: bool) -> str:
    """The end of SCORES."""
    return _SOFTCAPPED if softcapped else _PLAIN
