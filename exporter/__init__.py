"""Traces a Hugging Face checkpoint into ONNX graphs with markers for attention.

checkpoint -> architectures -> skeleton -> trace -> weights (place, link). Does not know cache
policies or targets, which `graphs/` applies to the traces.
"""
