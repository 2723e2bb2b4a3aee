"""SnapKVSelect: the prompt positions that the observation window votes to keep (SnapKV, top-k).

query_window [1,H,W,D], key [1,Hkv,T,D], prompt_length int64 [1]
    -> topk_positions int64 [1,Hkv,K], ascending, -1 where unused.
Attributes: L_sink, L_recent (int), K (ints, [K]), pool_kernel (ints, [1, P]), scale (float).

Softmax over the candidates alone (SnapStream, Eq. 3; Listing 6 takes it over all keys and slices by
the padded length), sum over the window (SnapKV, Eq. 1), average pool with the zero padding counted
in the mean, mean over the query heads of a KV head, K highest (SnapKV, Eq. 2), ties to the lower
position. Everything outside the candidates has probability 0, so that pooling over all positions
is pooling over the candidates with zero padding. Scores are summed in fp32 whatever the dtype.
"""

TEXT = """
<domain: "snapexport", opset_import: ["": 24]>
SnapKVSelect <L_sink, L_recent, K, pool_kernel, scale> (query_window, key, prompt_length)
    => (topk_positions)
{
  s = Constant <value_int: int = @L_sink> ()
  R = Constant <value_int: int = @L_recent> ()
  k = Constant <value_ints: ints = @K> ()
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  unused = Constant <value_int = -1> ()
  rest = Constant <value_ints = [-1]> ()
  no_vote = Constant <value_float = 0.0> ()
  ineligible = Constant <value_float = -1.0> ()
  lowest = Constant <value_float = -3.0e38> ()

  # The candidates: s <= position < L - R.
  T = Shape <start = 2, end = 3> (key)
  length = Squeeze (T)
  position = Range (zero, length, one)
  end = Sub (prompt_length, R)
  after_sinks = GreaterOrEqual (position, s)
  before_ring = Less (position, end)
  candidate = And (after_sinks, before_ring)

  # Scores of the query heads folded into their KV head: [1, Hkv, H/Hkv * W, T].
  kv_heads = Shape <start = 0, end = 2> (key)
  head_dim = Shape <start = 3> (key)
  folded_shape = Concat <axis = 0> (kv_heads, rest, head_dim)
  folded = Reshape (query_window, folded_shape)
  factor32 = Constant <value_float: float = @scale> ()
  factor = CastLike (factor32, key)
  scaled = Mul (folded, factor)
  key_t = Transpose <perm = [0, 1, 3, 2]> (key)
  products = MatMul (scaled, key_t)
  scores = Cast <to = 1> (products)
  masked = Where (candidate, scores, lowest)
  attention = Softmax <axis = -1> (masked)
  share = Where (candidate, attention, no_vote)

  # Votes of each query head, pooled: [1, H, 1, T].
  per_head = Shape <start = 0, end = 3> (query_window)
  per_query_shape = Concat <axis = 0> (per_head, T)
  per_query = Reshape (share, per_query_shape)
  window_axis = Constant <value_ints = [2]> ()
  votes = ReduceSum <keepdims = 1> (per_query, window_axis)
  pooled = AveragePool <kernel_shape: ints = @pool_kernel, auto_pad = "SAME_UPPER",
                        count_include_pad = 1> (votes)

  # Mean over the query heads of each KV head: [1, Hkv, T].
  grouped_shape = Concat <axis = 0> (kv_heads, rest, T)
  grouped = Reshape (pooled, grouped_shape)
  group_vote = ReduceMean <keepdims = 0> (grouped, window_axis)

  # The K highest, in the order of their positions; T stands for "none", and sorts last.
  eligible = Where (candidate, group_vote, ineligible)
  best, chosen = TopK <axis = -1, largest = 1, sorted = 1> (eligible, k)
  is_none = Less (best, no_vote)
  marked = Where (is_none, T, chosen)
  ascending, order = TopK <axis = -1, largest = 0, sorted = 1> (marked, k)
  past_end = Equal (ascending, T)
  topk_positions = Where (past_end, unused, ascending)
}
"""
