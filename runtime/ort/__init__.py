"""Runs graphs with ONNX Runtime, on the CPU or on a GPU.

backend.py: the graphs of a build. session.py: one session. devices.py: the CPU's memory and
settings. cuda.py: the CUDA provider's.
"""
