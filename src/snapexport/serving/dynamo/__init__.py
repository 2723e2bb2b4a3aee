"""NVIDIA Dynamo: workers that prefill or decode a build, and a first cluster on one machine.

    engine       `SnapexportEngine`: Dynamo's LLMEngine over a worker thread; runs a worker
    frontend     requests of Dynamo's frontend, and chunks for it
    handover     what a prefill worker passes to a decode worker: message, lease, landing
    transfer     lends rows, and fetches them
    transport    registers memory with NIXL, and fetches rows by it
    up           starts a frontend and workers on this machine, if Dynamo is installed

Only engine.py and transport.py import Dynamo or NIXL.
"""
