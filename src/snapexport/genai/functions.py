"""Functions of the joined graph: where a call begins, whether it is a step, and cutting blocks.

They are what `contract/pieces.py` and the runtime's rows do on the host.
"""

from snapexport.graphs.functions import Function

DIGIT = 1024
"""Base of the record's two digits, which caches in 16 bits hold exactly."""
MOST_TOKENS = DIGIT * DIGIT
"""The record counts up to here."""
RECORD = 4
"""Numbers of the record: tokens in the cache, tokens that were never run, where the first of these
was, and where the last one ended (0: none)."""

BEGIN = Function(
    "Begin",
    """
<domain: "snapexport", opset_import: ["": 24]>
Begin <sinks, held, digit, record> (input_ids, position_ids, past_high, past_low)
    => (place, fault, record_after)
{
  base = Constant <value_int: int = @digit> ()
  width = Constant <value_ints: ints = @record> ()
  zero = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  two = Constant <value_ints = [2]> ()
  three = Constant <value_ints = [3]> ()
  flat = Constant <value_ints = [-1]> ()
  positions = Reshape (position_ids, flat)
  first = Slice (positions, zero, one)

  all_high = Reshape (past_high, flat)
  all_low = Reshape (past_low, flat)
  one_high = Slice (all_high, zero, width)
  one_low = Slice (all_low, zero, width)
  was_high = Cast <to = 7> (one_high)
  was_low = Cast <to = 7> (one_low)
  scaled = Mul (was_high, base)
  were = Add (scaled, was_low)
  taken = Gather (were, zero)
  skipped = Gather (were, one)
  first_gap = Gather (were, two)
  after_gap = Gather (were, three)

  # The caller counts tokens that it sampled and never ran. The cache has no room for them.
  expected = Add (taken, skipped)
  is_start = Equal (first, zero)
  goes_on = Equal (first, expected)
  next = Add (expected, one)
  has_gap = Equal (first, next)
  is_rewind = Less (first, expected)

  # A rewind is exact while no cache dropped a position, and back into the sinks.
  is_after = GreaterOrEqual (first, after_gap)
  is_before = LessOrEqual (first, first_gap)
  is_known = Or (is_after, is_before)
  moved = Sub (first, skipped)
  rewound = Where (is_after, moved, first)
  none_dropped = Constant <value_int: int = @held> ()
  never_dropped = Constant <value_int: int = @sinks> ()
  is_whole = LessOrEqual (taken, none_dropped)
  in_sinks = LessOrEqual (rewound, never_dropped)
  is_held = Or (is_whole, in_sinks)
  is_exact = And (is_known, is_held)
  may_rewind = And (is_rewind, is_exact)
  in_order = Or (goes_on, has_gap)
  not_lost = Or (in_order, may_rewind)
  is_allowed = Or (not_lost, is_start)
  is_refused = Not (is_allowed)
  fault = Cast <to = 7> (is_refused)

  else_place = Where (is_rewind, rewound, taken)
  place = Where (is_start, zero, else_place)
  tokens = Shape <start = 1, end = 2> (input_ids)
  now_taken = Add (place, tokens)
  now_skipped = Sub (first, place)
  had_gap = Greater (skipped, zero)
  now_first = Where (had_gap, first_gap, expected)
  has_gaps = Greater (now_skipped, zero)
  still_after = Where (has_gaps, after_gap, zero)
  now_after = Where (has_gap, first, still_after)
  record_after = Concat <axis = 0> (now_taken, now_skipped, now_first, now_after)
}
""",
)
"""Tokens int64 [1,n], their positions as the caller counts them, and the record's digits [...,4] ->
int64 [1], the position in the cache of the first token; fault int64 [1] (1: what was before it is
not in the cache any more); and the record after the call, int64 [4].

sinks: positions that every cache keeps. held: positions that every cache holds without dropping
any. record: `RECORD`, as a list.
"""

WRITE = Function(
    "WriteRecord",
    """
<domain: "snapexport", opset_import: ["": 24]>
WriteRecord <digit> (record, past) => (high, low)
{
  base = Constant <value_int: int = @digit> ()
  are_high = Div (record, base)
  are_low = Mod (record, base)
  high_like = CastLike (are_high, past)
  low_like = CastLike (are_low, past)
  shape = Shape (past)
  high = Expand (high_like, shape)
  low = Expand (low_like, shape)
}
""",
)
"""The record int64 [4] and one of its digits before the call [...,4] -> both digits."""

IS_STEP = Function(
    "IsStep",
    """
<domain: "snapexport", opset_import: ["": 24]>
IsStep <sizes> (input_ids, place) => (is_step)
{
  one = Constant <value_ints = [1]> ()
  full = Constant <value_ints: ints = @sizes> ()
  tokens = Shape <start = 1, end = 2> (input_ids)
  is_one = Equal (tokens, one)
  overflows = Equal (place, full)
  as_number = Cast <to = 7> (overflows)
  any = ReduceMax <keepdims = 1> (as_number)
  drops = Cast <to = 9> (any)
  fits = Not (drops)
  both = And (is_one, fits)
  is_step = Squeeze (both)
}
""",
)
"""Tokens int64 [1,n] and the first one's position int64 [1] -> bool [], whether decode takes them.

sizes: the positions at which a cache that was whole begins to drop some, by a vote.
"""

TAKE_BLOCK = Function(
    "TakeBlock",
    """
<domain: "snapexport", opset_import: ["": 24]>
TakeBlock <chunk, voters> (input_ids, place, start) => (ids, positions, length, stop, goes_on)
{
  C = Constant <value_int: int = @chunk> ()
  V = Constant <value_int: int = @voters> ()
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  none = Constant <value_int = -1> ()
  axis = Constant <value_ints = [0]> ()

  # As few blocks as possible, of equal lengths, each but the last with the voters after it.
  end = Shape <start = 1, end = 2> (input_ids)
  left = Sub (end, start)
  is_long = Greater (left, C)
  own = Sub (left, V)
  most = Sub (C, V)
  more_own = Add (own, most)
  up_own = Sub (more_own, one)
  blocks = Div (up_own, most)
  count = Max (blocks, one)
  more_count = Add (own, count)
  up_count = Sub (more_count, one)
  equal = Div (up_count, count)
  take = Where (is_long, equal, left)
  voting = Where (is_long, V, zero)
  stop = Add (start, take)
  length = Add (take, voting)
  is_before_end = Less (stop, end)
  goes_on = Squeeze (is_before_end)

  # Rows of the block, then the voters, then padding: voters and padding have no position.
  row = Range (zero, C, one)
  is_own = Less (row, take)
  at_own = Add (row, start)
  past_own = Sub (row, take)
  first_voter = Sub (end, voting)
  at_voter = Add (past_own, first_voter)
  last = Sub (end, one)
  at = Where (is_own, at_own, at_voter)
  index = Min (at, last)
  ids = Gather <axis = 1> (input_ids, index)
  position = Add (at_own, place)
  or_none = Where (is_own, position, none)
  positions = Unsqueeze (or_none, axis)
}
""",
)
"""Tokens int64 [1,n], the first one's position [1], and the token that the block starts at [1] ->
the inputs of a block: ids and positions int64 [1,C], length [1]; the token that the next block
starts at [1], and bool [], whether there is one.
"""
