"""Runs a build's compiled TensorRT engines on a GPU.

backend.py: contexts, launches and captured steps. plans.py: from plan files to engines. entry.py:
which of a build's engines suits this machine.
"""
