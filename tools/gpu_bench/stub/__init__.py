"""onnxruntime-gpu without a GPU: which nodes it places where. See `--help`."""
