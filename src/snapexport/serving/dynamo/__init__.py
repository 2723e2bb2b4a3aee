"""NVIDIA Dynamo: workers that prefill or decode a build, and a first cluster on one machine.

    engine       `SnapexportEngine`: Dynamo's LLMEngine over a worker thread
    requests     from a request of Dynamo's frontend to a `Request`
    chunks       from outputs to chunks for the frontend
    message      what a prefill worker tells the decode worker of a prompt
    transport    registers memory with NIXL, and fetches rows by it
    leases       rows that wait to be fetched, and how long
    landing      memory in which fetched rows land
    metrics      how much was moved, and how fast
    up           starts a frontend and workers on this machine

Only engine.py, transport.py and worker.py import Dynamo or NIXL.
"""
