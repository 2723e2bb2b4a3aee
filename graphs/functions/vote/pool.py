"""--pool: how a vote spreads over its neighbours. votes [1,H,1,T] -> pooled [1,H,1,T].

Votes are zero outside the eligible positions: pooling over all positions is pooling over those
with zero padding. ONNX leaves padding out of a mean unless told; the original counts it.
"""

OPTIONS = {
    # SnapKV's code, and SnapStream.
    "avg": """
  pooled = AveragePool <kernel_shape: ints = @pool_kernel, auto_pad = "SAME_UPPER",
                        count_include_pad = 1> (votes)
""",
    # SnapKV's paper. Votes are never negative, so that padding with zero and without are the same.
    "max": """
  pooled = MaxPool <kernel_shape: ints = @pool_kernel, auto_pad = "SAME_UPPER"> (votes)
""",
}
