"""--softmax: among which keys a query's attention is shared out.

scores, float32 [1,H,W,T] -> attention [1,H,W,T]: each query's sums to 1.

What is not attended to has `lowest` added, not selected by Where: ONNX Runtime's takes ten times as
long where it broadcasts. Scores have to be finite for that, those of sinks and pads too.
"""

OPTIONS = {
    # SnapStream, Eq. 3: the eligible positions alone, so that every query casts one whole vote.
    "candidates": """
  bias = Where (is_eligible, no_vote, lowest)
  masked = Add (scores, bias)
  attention = Softmax <axis = -1> (masked)
""",
    # SnapKV, Listing 1: all keys up to the query itself, so that a query which looks at the sinks
    # or the ring has less of a vote. Row i of the window stands at L - W + i.
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
