"""Runs a build of the target `portable` with OpenVINO.

backend.py: the graphs of a build, bound to buffers. mixed.py: steps in ONNX Runtime beside it.
reading.py: from a file to OpenVINO's model. graph_file.py: what is done to the file before;
attention.py and operators.py: conversions of its operators.
"""
