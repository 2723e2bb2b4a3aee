"""Serves a build by Triton Inference Server.

    build directory -> repository (written) -> tritonserver -> backend (inside the server)

`interface` defines the model's inputs and outputs. Importing this package imports no module of it.
"""
