"""--vote: how the window's queries add up. share [1,H,W,T] -> votes [1,H,1,T]."""

OPTIONS = {
    # SnapKV, Eq. 1.
    "sum": """
  votes = ReduceSum <keepdims = 1> (share, window_axis)
""",
    # KV-Compress (arXiv:2410.00161): one query that is sure outweighs many that are not.
    "sum-squares": """
  votes = ReduceSumSquare <keepdims = 1> (share, window_axis)
""",
}
