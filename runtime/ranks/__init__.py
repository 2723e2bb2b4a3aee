"""Runs a build of several ranks (tensor parallelism) on one machine: a process for each rank.

executor.py: an executor whose calls all ranks follow. processes.py: starts the other ranks, and is
their process. sockets.py, mpi.py: what ranks exchange, over sockets or by MPI.
"""
