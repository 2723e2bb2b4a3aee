"""--pool: spreads votes over P neighbouring positions. votes [1,H,1,T] -> pooled [1,H,1,T].

Votes are zero outside the eligible positions, so pooling over all positions equals pooling over the
eligible ones with zero padding. count_include_pad = 1 counts the padding in a mean, as SnapKV does.

`%(kernel)s` becomes [1, P]. TensorRT's parser reads kernel_shape only from a literal: it does not
resolve a reference to the function's attribute there.
"""

OPTIONS = {
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
