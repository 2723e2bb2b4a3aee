"""Python modules that compile, call and check the launchers of the TensorRT plugins.

Builds and runs do not import this package. README.md in this folder describes the plugins.
"""
