"""Reads quantized checkpoints: as integers with their scales where those are exact, else as floats.

`config.py` has the table of methods, each a file of its own. Knows no architecture.
"""

from snapexport.exporter.quantized.config import read_quantization
from snapexport.exporter.quantized.fp8 import Fp8Tensor
from snapexport.exporter.quantized.quantization import Quantization

__all__ = ["Fp8Tensor", "Quantization", "read_quantization"]
