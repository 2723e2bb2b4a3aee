"""Runs a build of the target `portable` with OpenVINO.

backend.py: the graphs of a build, bound to buffers, and steps in ONNX Runtime beside it.
reading.py: from a file to OpenVINO's model. attention.py and operators.py: conversions of its
operators.
"""
