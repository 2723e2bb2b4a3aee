"""Functions of a compressed cache's ring: which slot a row goes to, and which rows it keeps.

SnapStreamGather makes a prompt's compressed cache, RingSlot finds a decoded token's place in it,
and RingFill writes a chunk's rows to a ring that a method adds.
"""

from snapexport.graphs.functions import Function

SNAPSTREAM_GATHER = Function(
    "SnapStreamGather",
    """
<domain: "snapexport", opset_import: ["": 24]>
SnapStreamGather <L_sink, L_recent, spare> (key, value, prompt_length, topk_positions)
    => (present_key, present_value)
{
  s = Constant <value_int: int = @L_sink> ()
  seen = Constant <value_int: int = @L_recent> ()
  more = Constant <value_int: int = @spare> ()
  R = Add (seen, more)
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  none = Constant <value_int = -1> ()
  last_axis = Constant <value_ints = [-1]> ()

  # A ring slot holds p = newest - (newest - slot) mod R, if p >= s.
  window = Add (s, R)
  slot = Range (zero, window, one)
  newest = Sub (prompt_length, one)
  behind = Sub (newest, slot)
  age = Mod (behind, R)
  latest = Sub (newest, age)
  in_ring = GreaterOrEqual (latest, s)
  ring_position = Where (in_ring, latest, none)
  is_sink = Less (slot, s)
  window_position = Where (is_sink, slot, ring_position)

  # The position in each cache slot, -1 where empty: [1, Hkv, S].
  kv_heads = Shape <start = 0, end = 2> (key)
  width = Reshape (window, last_axis)
  window_shape = Concat <axis = 0> (kv_heads, width)
  for_all_heads = Expand (window_position, window_shape)
  if_compressed = Concat <axis = -1> (for_all_heads, topk_positions)

  # Of a prompt that fits, the slot's own number.
  K = Shape <start = 2, end = 3> (topk_positions)
  slots = Add (window, K)
  size = Sub (slots, more)
  is_whole = LessOrEqual (prompt_length, size)
  length = Squeeze (slots)
  own_slot = Range (zero, length, one)
  is_prompt = Less (own_slot, prompt_length)
  if_whole = Where (is_prompt, own_slot, none)
  position = Where (is_whole, if_whole, if_compressed)

  present = GreaterOrEqual (position, zero)
  filled = Unsqueeze (present, last_axis)
  clipped = Max (position, zero)
  index = Unsqueeze (clipped, last_axis)
  keys = GatherND <batch_dims = 2> (key, index)
  values = GatherND <batch_dims = 2> (value, index)
  filling = CastLike (filled, key)
  present_key = Mul (keys, filling)
  present_value = Mul (values, filling)
}
""",
)
"""SnapStreamGather: copies a prompt's sinks, ring and kept positions into its compressed cache.

key, value [1,Hkv,T,D], prompt_length int64 [1], topk_positions int64 [1,Hkv,K]
    -> present_key, present_value [1,Hkv,S,D]; empty cache slots are zero.
Attributes: L_sink, L_recent, and spare (int): the ring's slots beyond L_recent.

If L <= S (without the spare slots), position p is at slot p. Else ring slot s + j holds the
largest position p < L with p >= s and (p - s) mod R = j (SnapStream, Listing 3, whose `<=` takes
one position too many).
"""


RING_SLOT = Function(
    "RingSlot",
    """
<domain: "snapexport", opset_import: ["": 24]>
RingSlot <L_sink, L_recent, K> (position_ids, prompt_length) => (slot, valid_length)
{
  s = Constant <value_int: int = @L_sink> ()
  R = Constant <value_int: int = @L_recent> ()
  k = Constant <value_int: int = @K> ()
  one = Constant <value_int = 1> ()
  last_axis = Constant <value_ints = [1]> ()
  p = Squeeze (position_ids, last_axis)

  # ring = R + K if L <= S else R. By a Where, TensorRT for RTX fails if some layers have K = 0.
  rest = Add (R, k)
  S = Add (s, rest)
  is_whole = LessOrEqual (prompt_length, S)
  whole = Cast <to = 7> (is_whole)
  others = Mul (whole, k)
  ring = Add (R, others)

  # slot = p if p < s else s + (p - s) mod ring
  past_sinks = Sub (p, s)
  turn = Mod (past_sinks, ring)
  ring_slot = Add (s, turn)
  is_sink = Less (p, s)
  slot = Where (is_sink, p, ring_slot)

  # valid = min(p + 1, S)
  seen = Add (p, one)
  valid_length = Min (seen, S)
}
""",
)
"""RingSlot: the cache slot a decoded token is written to, and the number of slots it attends to.

position_ids int64 [B,1], prompt_length int64 [B] -> slot, valid_length int64 [B].
Attributes: L_sink, L_recent, K (int).

The slot follows SnapStream's Listing 5. The paper's Eq. 4 adds L_sr instead of L_sink, and would
write into the top-k slots. A prompt that the S cache slots hold keeps nothing by a vote: then the
ring is all of them but the sinks.
"""


RING_FILL = Function(
    "RingFill",
    """
<domain: "snapexport", opset_import: ["": 24]>
RingFill <L_recent> (past, rows, past_length, chunk_length) => (present)
{
  R = Constant <value_int: int = @L_recent> ()
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  last_axis = Constant <value_ints = [-1]> ()

  # A slot's newest position is newest - (newest - slot) mod R.
  slot = Range (zero, R, one)
  end = Add (past_length, chunk_length)
  newest = Sub (end, one)
  behind = Sub (newest, slot)
  age = Mod (behind, R)
  latest = Sub (newest, age)

  row = Sub (latest, past_length)
  is_new = GreaterOrEqual (row, zero)
  column = Unsqueeze (is_new, last_axis)
  clipped = Max (row, zero)
  moved = Gather <axis = 2> (rows, clipped)
  present = Where (column, moved, past)
}
""",
)
"""RingFill: writes a chunk's rows to a ring, the newest of those that share a slot.

past [1,Hkv,R,D], rows [1,Hkv,C,D], past_length, chunk_length int64 [1] -> present [1,Hkv,R,D].
Attributes: L_recent (int), which is R.

Row i is at position past_length + i, for i < chunk_length, and position p has the slot p mod R.
Slots of no such position stay as they are.
"""
