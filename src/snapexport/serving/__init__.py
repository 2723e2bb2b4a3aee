"""Serves a build: an OpenAI-compatible API in one process, and Triton Inference Server.

    openai/     HTTP: from a body to a request, from outputs to an answer
    generator   the protocol between that front and what continues prompts; two implement it:
    worker        the thread that owns the LLM, in this process
    triton/       a Triton server that has the LLM in a process of its own
    serve       joins them for `snapexport serve`

Importing this package loads nothing.
"""
