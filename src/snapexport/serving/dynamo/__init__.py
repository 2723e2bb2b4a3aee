"""NVIDIA Dynamo: workers that prefill or decode a build, and a first cluster on one machine.

    engine       `SnapexportEngine`: Dynamo's LLMEngine over a worker thread
    requests     from a request of Dynamo's frontend to a `Request`
    chunks       from outputs to chunks for the frontend
    message      what a decode worker needs of a prompt that was prefilled elsewhere
    transport    registers memory with NIXL, and fetches rows by it
    leases       rows that wait to be fetched, how long, and the notes about them
    landing      memory in which fetched rows land
    metrics      counts of the rows that were fetched
    up           starts a frontend and workers on this machine

Only engine.py, transport.py and worker.py import Dynamo or NIXL.
"""
