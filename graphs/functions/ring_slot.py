"""RingSlot: the cache slot a decoded token is written to, and the number of slots it attends to.

position_ids int64 [B,1], prompt_length int64 [B] -> slot, valid_length int64 [B].
Attributes: L_sink, L_recent, K (int).

The slot follows SnapStream's Listing 5. The paper's Eq. 4 adds L_sr instead of L_sink, and would
write into the top-k slots. A prompt that the S cache slots hold keeps nothing by a vote: then the
ring is all of them but the sinks.
"""

from snapexport.graphs.functions.function import Function

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
