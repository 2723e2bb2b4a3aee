"""ExtendGather: the compressed cache of a longer prompt, of what was cached and of the new tokens.

key, value [1,Hkv,N,D] and entry_position int64 [1,Hkv,N], entries in the order of their positions,
entries and total_length int64 [1], chosen int64 [1,Hkv,K], ascending, -1 where unused
    -> present_key, present_value [1,Hkv,S,D], slot_positions int64 [1,Hkv,S], -1 where empty.
Attributes: L_sink, L_recent, and spare (int): the ring has L_recent + spare slots, and its newest
L_recent positions are filled in.

As SnapStreamGather, which has all positions: if entries <= S, entry e lies at slot e. Else entry e
of the ring is position e + total_length - entries, since what was not kept is gone. Sinks are never
gone.
"""

from snapexport.graphs.functions.function import Function

EXTEND_GATHER = Function(
    "ExtendGather",
    """
<domain: "snapexport", opset_import: ["": 24]>
ExtendGather <L_sink, L_recent, spare> (key, value, entry_position, entries, total_length, chosen)
    => (present_key, present_value, slot_positions)
{
  s = Constant <value_int: int = @L_sink> ()
  seen = Constant <value_int: int = @L_recent> ()
  more = Constant <value_int: int = @spare> ()
  R = Add (seen, more)
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  none = Constant <value_int = -1> ()
  last_axis = Constant <value_ints = [-1]> ()

  # A ring slot holds p = newest - (newest - slot) mod R, if p >= s, which is entry p - gone.
  window = Add (s, R)
  slot = Range (zero, window, one)
  newest = Sub (total_length, one)
  behind = Sub (newest, slot)
  age = Mod (behind, R)
  latest = Sub (newest, age)
  gone = Sub (total_length, entries)
  ring_entry = Sub (latest, gone)
  before = Sub (total_length, seen)
  oldest = Max (s, before)
  in_ring = GreaterOrEqual (latest, oldest)
  held_in_ring = Where (in_ring, ring_entry, none)
  is_sink = Less (slot, s)
  window_entry = Where (is_sink, slot, held_in_ring)

  # The entry in each cache slot, -1 where empty: [1, Hkv, S].
  kv_heads = Shape <start = 0, end = 2> (key)
  width = Reshape (window, last_axis)
  window_shape = Concat <axis = 0> (kv_heads, width)
  for_all_heads = Expand (window_entry, window_shape)
  if_compressed = Concat <axis = -1> (for_all_heads, chosen)

  # Of entries that fit, the slot's own number.
  K = Shape <start = 2, end = 3> (chosen)
  slots = Add (window, K)
  size = Sub (slots, more)
  is_whole = LessOrEqual (entries, size)
  length = Squeeze (slots)
  own_slot = Range (zero, length, one)
  is_entry = Less (own_slot, entries)
  if_whole = Where (is_entry, own_slot, none)
  entry = Where (is_whole, if_whole, if_compressed)

  present = GreaterOrEqual (entry, zero)
  clipped = Max (entry, zero)
  positions = GatherElements <axis = 2> (entry_position, clipped)
  slot_positions = Where (present, positions, none)
  filled = Unsqueeze (present, last_axis)
  index = Unsqueeze (clipped, last_axis)
  keys = GatherND <batch_dims = 2> (key, index)
  values = GatherND <batch_dims = 2> (value, index)
  filling = CastLike (filled, key)
  present_key = Mul (keys, filling)
  present_value = Mul (values, filling)
}
""",
)
