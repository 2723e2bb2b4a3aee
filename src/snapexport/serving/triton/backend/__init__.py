"""The code inside Triton's Python backend: one build, one worker, continuous batching.

    execute()       reads a request's tensors (inputs), and returns at once
    reader threads  tokenize, and give the request to the worker
    worker thread   owns the LLM: submits, steps, cancels (serving.worker)
    sender thread   talks with the server: responses, "is it cancelled?", metrics

An exchange with the server takes 50 to 100 us: a thread of its own keeps it from delaying the LLM.
`triton_port`, `publisher` and the two models know Triton's API; the rest does not.
"""
