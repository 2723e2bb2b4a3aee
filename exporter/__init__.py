"""From a Hugging Face checkpoint to traced ONNX graphs whose attention is still a marker.

checkpoint -> architectures -> skeleton -> trace -> weights (place, link). Knows nothing of cache
policies or targets: `graphs/` decides those on what is traced here.
"""
