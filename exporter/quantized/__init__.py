"""Reads quantized checkpoints: tensors appear dequantized, calculated while they are read.

Two kinds are known: mxfp4, in which gpt-oss has its experts, and fp8 with a scale for each block,
in which DeepSeek-V3 and Qwen3 have their linear layers. Knows no architecture.
"""

from snapexport.exporter.quantized.config import Quantization, read_quantization
from snapexport.exporter.quantized.fp8 import Fp8Tensor
from snapexport.exporter.quantized.tensors import dequantized

__all__ = ["Fp8Tensor", "Quantization", "dequantized", "read_quantization"]
