"""Shows where onnxruntime-gpu places nodes, on a machine without a GPU. See `--help`."""
