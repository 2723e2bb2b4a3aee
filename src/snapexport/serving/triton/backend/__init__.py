"""The code inside Triton's Python backend: one build, one worker, continuous batching.

    execute()       reads a request's tensors, and returns at once
    reader threads  tokenize
    worker thread   owns the LLM: submits, steps, cancels (serving.worker)
    sender thread   an event loop: sends responses and metrics to the server, and polls for
                    cancelled requests

A call of the server takes 50 to 100 us; the sender thread keeps this from delaying the LLM. Only
`triton_port` and the two models know Triton's API.
"""
