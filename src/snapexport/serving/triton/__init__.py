"""Serves a build by Triton Inference Server.

    build directory -> repository (written, then checked) -> server -> backend (inside the server)

`interface` defines the model's inputs and outputs. Importing this package imports no module of it.
"""
