"""Serves a build by Triton Inference Server.

    build directory -> repository (written) -> tritonserver -> models (inside the server)

    interface   inputs and outputs of the models
    repository  writes a model repository
    models      the two models in Triton's Python backend; one has a build, a worker and batching
    settings    their parameters
    tensors     requests' tensors, and those of outputs
    sender      responses, in an event loop
    port        Triton's API

`execute()` reads a request's tensors and returns at once. Reader threads tokenize, the worker
thread owns the LLM, and the sender's thread has an event loop: it sends responses and metrics to
the server, and polls for cancelled requests. A call of the server takes 50 to 100 us, which so does
not delay the LLM. Only `port` and `models` know Triton's API. Importing this package imports no
module of it.
"""
