"""--group: how the query heads of a KV head agree. grouped [1,Hkv,G,T] -> group_vote [1,Hkv,T].

Query-group compression: one set of positions for each KV head, after pooling (kvpress' order).
"""

OPTIONS = {
    "mean": """
  group_vote = ReduceMean <keepdims = 0> (grouped, window_axis)
""",
    # A position that one query head needs is kept, however little the others care.
    "max": """
  group_vote = ReduceMax <keepdims = 0> (grouped, window_axis)
""",
    # The same ranking as the mean; KV-Compress and SnapKV sum.
    "sum": """
  group_vote = ReduceSum <keepdims = 0> (grouped, window_axis)
""",
}
