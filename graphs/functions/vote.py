"""The vote's options, each a few lines of ONNX text in the body of SnapKVSelect.

A stage reads the output of the stage before: softmax -> vote -> pool -> group. To add an option,
add an entry to its stage. The command line imports this module for the names, so it imports nothing
heavy.
"""

_SOFTMAX = {
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
"""--softmax: distributes each query's attention over keys.

scores float32 [1,H,W,T] -> attention float32 [1,H,W,T], each row summing to 1.

Masked scores get `lowest` added: a broadcasting Where takes ten times as long in ONNX Runtime.
This needs finite scores everywhere, also at sinks and padding.
"""

_VOTE = {
    # SnapKV, Eq. 1.
    "sum": """
  all_votes = ReduceSum <keepdims = 1> (attention, window_axis)
""",
    # KV-Compress (arXiv:2410.00161): one query of high attention outweighs many of low attention.
    "sum-squares": """
  all_votes = ReduceSumSquare <keepdims = 1> (attention, window_axis)
""",
}
"""--vote: adds up the votes of the window's queries. [1,H,W,T] -> all_votes [1,H,1,T]."""

_POOL = {
    # As in SnapKV's code and in SnapStream.
    "avg": """
  pooled = AveragePool <kernel_shape = %(kernel)s, auto_pad = "SAME_UPPER",
                        count_include_pad = 1> (votes)
""",
    # As in SnapKV's paper. Zero padding changes nothing, since votes are never negative.
    "max": """
  pooled = MaxPool <kernel_shape = %(kernel)s, auto_pad = "SAME_UPPER"> (votes)
""",
}
"""--pool: spreads votes over P neighbouring positions. votes [1,H,1,T] -> pooled [1,H,1,T].

Votes are zero outside the eligible positions, so pooling over all positions equals pooling over the
eligible ones with zero padding. count_include_pad = 1 counts the padding in a mean, as SnapKV does.

`%(kernel)s` becomes [1, P]. TensorRT's parser reads kernel_shape only from a literal: it does not
resolve a reference to the function's attribute there.
"""

_GROUP = {
    "mean": """
  group_vote = ReduceMean <keepdims = 0> (grouped, window_axis)
""",
    # One query head's high vote keeps a position, whatever the other heads vote.
    "max": """
  group_vote = ReduceMax <keepdims = 0> (grouped, window_axis)
""",
    # Ranks as the mean does; KV-Compress and SnapKV use the sum.
    "sum": """
  group_vote = ReduceSum <keepdims = 0> (grouped, window_axis)
""",
}
"""--group: combines the votes of a KV head's G query heads. [1,Hkv,G,T] -> group_vote [1,Hkv,T].

Each KV head keeps one set of positions. Grouping comes after pooling, as in kvpress.
"""

STAGES = {"softmax": _SOFTMAX, "vote": _VOTE, "pool": _POOL, "group": _GROUP}

DEFAULTS = {"softmax": "causal", "vote": "sum-squares", "pool": "avg", "group": "mean"}
"""Not SnapStream's vote (candidates, sum): squares of the model's own attention kept more."""
