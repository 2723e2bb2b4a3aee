"""Runs graphs with ONNX Runtime, on the CPU or on a GPU.

backend.py: the graphs of a build. session.py: one session. devices.py: memory and settings of the
CPU and of a GPU.
"""
