"""--vote: adds up the votes of the window's queries. [1,H,W,T] -> all_votes [1,H,1,T]."""

OPTIONS = {
    # SnapKV, Eq. 1.
    "sum": """
  all_votes = ReduceSum <keepdims = 1> (attention, window_axis)
""",
    # KV-Compress (arXiv:2410.00161): one query of high attention outweighs many of low attention.
    "sum-squares": """
  all_votes = ReduceSumSquare <keepdims = 1> (attention, window_axis)
""",
}
