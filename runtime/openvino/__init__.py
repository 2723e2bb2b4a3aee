"""Runs a build of the target `portable` with OpenVINO.

backend.py: the graphs of a build, bound to buffers. reading.py: from a file to OpenVINO's model.
"""
