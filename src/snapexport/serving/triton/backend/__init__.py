"""What runs inside Triton's Python backend: one build, one engine, continuous batching.

    execute()       reads a request's values (question), and returns at once
    reader threads  tokenize, and give the request to the worker
    worker thread   owns the LLM: submits, steps, cancels
    sender thread   owns all talk with the server: answers, "is it cancelled?", metrics

An exchange with the server takes 50 to 100 us each: with a thread of its own it does not hold up
the engine. `triton_port`, `metrics` and the two models know Triton's API; the rest does not.
"""
