"""A build behind Triton Inference Server.

    build directory -> repository (written, then checked) -> server -> backend (inside the server)

`interface` is what they agree on: the model's inputs and outputs. Importing this package loads
nothing.
"""
