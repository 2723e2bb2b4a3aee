"""Puts a server under many clients, beside the same requests given to the runtime in this process.

    options -> workload (who asks what) -> in_process, server (in turn) -> exchanges -> summary

Each client asks, reads to the end, and asks again. What the server costs is the ratio of the two.
"""
