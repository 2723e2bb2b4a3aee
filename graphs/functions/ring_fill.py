"""RingFill: writes a chunk's rows to a ring, the newest of those that share a slot.

past [1,Hkv,R,D], rows [1,Hkv,C,D], past_length, chunk_length int64 [1] -> present [1,Hkv,R,D].
Attributes: L_recent (int), which is R.

Row i is at position past_length + i, for i < chunk_length, and position p has the slot p mod R.
Slots of no such position stay as they are.
"""

from snapexport.graphs.functions.function import Function

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
