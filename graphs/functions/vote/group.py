"""--group: combines the votes of a KV head's G query heads. [1,Hkv,G,T] -> group_vote [1,Hkv,T].

Each KV head keeps one set of positions. Grouping comes after pooling, as in kvpress.
"""

OPTIONS = {
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
