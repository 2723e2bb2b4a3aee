"""BlockSelect: the positions of a prompt's past that a chunk attends to (sparse prefill).

query [1,H,C,D], block_key [1,Hkv,M,D], the means of the keys of each block, past_length int64 [1]
    -> positions int64 [1,Hkv,N], ascending: those of N / block blocks before past_length.
Attributes: block, recent (int), blocks (ints, [N / block]), scale (float).

The first block and the `recent` latest ones are always among them. Of the others those are taken
that get most attention, ties to the lower one: the means of each `block` queries share a softmax
over those blocks' means, and the shares of a KV head's queries are added up. past_length is a
multiple of block, and C is one, too.
"""

from snapexport.graphs.functions.function import Function

BLOCK_SELECT = Function(
    "BlockSelect",
    """
<domain: "snapexport", opset_import: ["": 24]>
BlockSelect <block, recent, blocks, scale> (query, block_key, past_length) => (positions)
{
  b = Constant <value_int: int = @block> ()
  near = Constant <value_int: int = @recent> ()
  count = Constant <value_ints: ints = @blocks> ()
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  rest = Constant <value_ints = [-1]> ()
  last_axis = Constant <value_ints = [1]> ()
  third_axis = Constant <value_ints = [3]> ()
  lowest = Constant <value_float = -3.0e38> ()
  no_vote = Constant <value_float = -1.0> ()
  highest = Constant <value_float = 3.0e38> ()

  # A mean of each block of queries, the query heads folded into their KV head: [1, Hkv, R, D].
  kv_heads = Shape <start = 0, end = 2> (block_key)
  head_dim = Shape <start = 3> (block_key)
  width = Reshape (b, rest)
  grouped_shape = Concat <axis = 0> (kv_heads, rest, width, head_dim)
  grouped = Reshape (query, grouped_shape)
  queries = Cast <to = 1> (grouped)
  means = ReduceMean <keepdims = 0> (queries, third_axis)
  factor = Constant <value_float: float = @scale> ()
  scaled = Mul (means, factor)
  keys = Cast <to = 1> (block_key)
  columns = Transpose <perm = [0, 1, 3, 2]> (scaled)
  by_block = MatMul (keys, columns)

  # Which blocks are before the chunk, and which are taken in any case: [M, 1].
  M = Shape <start = 2, end = 3> (block_key)
  length = Squeeze (M)
  flat = Range (zero, length, one)
  index = Unsqueeze (flat, last_axis)
  end = Div (past_length, b)
  is_past = Less (index, end)
  latest = Sub (end, near)
  is_near = GreaterOrEqual (index, latest)
  is_first = Less (index, one)
  is_taken = Or (is_near, is_first)
  is_other = Not (is_taken)

  scores = Where (is_other, by_block, lowest)
  share = Softmax <axis = 2> (scores)
  votes = ReduceSum <keepdims = 1> (share, third_axis)
  of_others = Where (is_other, votes, highest)
  ranked = Where (is_past, of_others, no_vote)
  column = Squeeze (ranked, third_axis)
  best, chosen = TopK <axis = -1, largest = 1, sorted = 1> (column, count)
  ascending, order = TopK <axis = -1, largest = 0, sorted = 1> (chosen, count)
  starts = Mul (ascending, b)
  first = Unsqueeze (starts, third_axis)
  offset = Range (zero, b, one)
  spread = Add (first, offset)
  shape = Concat <axis = 0> (kv_heads, rest)
  positions = Reshape (spread, shape)
}
""",
)
