"""Tests against the real TensorRT for RTX: its parser and its builder, without a GPU."""
