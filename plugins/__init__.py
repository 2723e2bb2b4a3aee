"""The TensorRT plugins: C++ and CUDA, and what builds, calls and checks their launchers.

Not loaded by a build or a run: README.md beside this file has the map.
"""
