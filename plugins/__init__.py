"""Home of the TensorRT plugins. There are none yet: see README.md beside this file."""
