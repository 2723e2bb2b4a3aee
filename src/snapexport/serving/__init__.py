"""Serves a build: by OpenAI's API in one process, in Triton Inference Server, or by NVIDIA Dynamo.

    options    of each server
    model      `Model`: one loaded build, over which all three are written
    streams    requests to outputs, in an event loop
    worker     the thread that owns the LLM
    serve      runs `snapexport serve`: binds, listens, drains on signals
    openai/    HTTP: bodies to requests, outputs to answers
    triton/    a model repository, and the code inside Triton's Python backend
    dynamo/    a worker of a cluster

Importing this package imports no module of it.
"""
