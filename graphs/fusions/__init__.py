"""Fusions: fewer operators, and so fewer kernels, with the same results.

A decode step on a GPU reads each weight once, and starts some 20 kernels in each layer, each of
which takes some microseconds. `python -m tools.studies.cuda_stub BUILD` counts them without a GPU.

    residual and norm    2 kernels -> 1
    x * sigmoid(x)       2 -> 1
    q, k and v           3 products and 2 rotations -> 1 product, 1 rotation and 1 split
"""
