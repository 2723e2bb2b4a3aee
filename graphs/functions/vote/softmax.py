"""--softmax: distributes each query's attention over keys.

scores float32 [1,H,W,T] -> attention float32 [1,H,W,T], each row summing to 1.

Masked scores get `lowest` added: a broadcasting Where takes ten times as long in ONNX Runtime.
This needs finite scores everywhere, also at sinks and padding.
"""

OPTIONS = {
    # SnapStream, Eq. 3: over the eligible positions alone, so that every query casts one full vote.
    "candidates": """
  bias = Where (is_eligible, no_vote, lowest)
  masked = Add (scores, bias)
  attention = Softmax <axis = -1> (masked)
""",
    # SnapKV, Listing 1: over all keys up to the query itself. A query's attention to sinks and ring
    # reduces its vote. Row i of the window is at position L - W + i.
    "causal": """
  window_size = Shape <start = 2, end = 3> (query_window)
  rows = Squeeze (window_size)
  row = Range (zero, rows, one)
  first_row = Sub (prompt_length, window_size)
  row_position = Add (first_row, row)
  row_column = Unsqueeze (row_position, rest)
  is_past = LessOrEqual (position, row_column)
  bias = Where (is_past, no_vote, lowest)
  masked = Add (scores, bias)
  attention = Softmax <axis = -1> (masked)
""",
}
