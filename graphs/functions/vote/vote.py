"""--vote: how the window's queries add up. attention [1,H,W,T] -> all_votes [1,H,1,T]."""

OPTIONS = {
    # SnapKV, Eq. 1.
    "sum": """
  all_votes = ReduceSum <keepdims = 1> (attention, window_axis)
""",
    # KV-Compress (arXiv:2410.00161): one query that is sure outweighs many that are not.
    "sum-squares": """
  all_votes = ReduceSumSquare <keepdims = 1> (attention, window_axis)
""",
}
