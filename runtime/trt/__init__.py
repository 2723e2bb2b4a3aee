"""Runs a build's compiled TensorRT engines on a GPU.

backend.py: contexts, launches and captured steps. engines.py: loads engine files. entry.py: chooses
the engines that suit this machine.
"""
