"""Serves a build: an OpenAI-compatible API in one process, and Triton Inference Server.

    openai/     HTTP: bodies to requests, outputs to answers
    generator   the protocol between openai/ and the generators, of which there are two:
    worker        a thread of this process that owns the LLM
    triton/       a Triton server whose own process owns the LLM
    serve       joins the parts for `snapexport serve`

Importing this package imports no module of it.
"""
