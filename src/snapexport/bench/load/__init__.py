"""Loads a server with many clients, and the runtime in this process with the same requests.

    options -> workload (requests by client) -> in_process, server (in turn) -> exchanges -> summary

Each client sends a request, reads its answer to the end, and sends the next. The server's cost is
the ratio of its throughput to the runtime's.
"""
