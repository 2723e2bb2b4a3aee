"""Runs a build of several ranks (tensor parallelism) on one machine: a process for each rank.

collectives.py: what ranks exchange. sockets.py: over sockets. executor.py: an executor whose calls
all ranks follow. leader.py: starts the others. follower.py: their process.
"""
