"""SnapStreamGather: copies a prompt's sinks, ring and kept positions into its compressed cache.

key, value [1,Hkv,T,D], prompt_length int64 [1], topk_positions int64 [1,Hkv,K]
    -> present_key, present_value [1,Hkv,S,D]; empty cache slots are zero.
Attributes: L_sink, L_recent, and spare (int): the ring's slots beyond L_recent.

If L <= S (without the spare slots), position p lies at slot p. Else ring slot s + j holds the
largest position p < L with p >= s and (p - s) mod R = j (SnapStream, Listing 3, whose `<=` takes
one position too many).
"""

from snapexport.graphs.functions.function import Function

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
