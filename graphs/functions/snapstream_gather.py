"""SnapStreamGather: copies a prompt's sinks, ring and kept positions into its compressed cache.

key, value [1,Hkv,T,D], prompt_length int64 [1], topk_positions int64 [1,Hkv,K]
    -> present_key, present_value [1,Hkv,S,D]; empty cache slots are zero.
Attributes: L_sink, L_recent (int).

Ring slot s + j holds the largest position p < L with p >= s and (p - s) mod R = j (SnapStream,
Listing 3, whose `<=` takes one position too many).
"""

from snapexport.graphs.functions.function import Function

SNAPSTREAM_GATHER = Function(
    "SnapStreamGather",
    """
<domain: "snapexport", opset_import: ["": 24]>
SnapStreamGather <L_sink, L_recent> (key, value, prompt_length, topk_positions)
    => (present_key, present_value)
{
  s = Constant <value_int: int = @L_sink> ()
  R = Constant <value_int: int = @L_recent> ()
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
  is_prompt = Less (slot, prompt_length)
  sink_position = Where (is_prompt, slot, none)
  is_sink = Less (slot, s)
  window_position = Where (is_sink, sink_position, ring_position)

  # The position in each cache slot, -1 where empty: [1, Hkv, S].
  kv_heads = Shape <start = 0, end = 2> (key)
  width = Reshape (window, last_axis)
  window_shape = Concat <axis = 0> (kv_heads, width)
  for_all_heads = Expand (window_position, window_shape)
  position = Concat <axis = -1> (for_all_heads, topk_positions)

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
