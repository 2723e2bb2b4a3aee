"""Weights as small integers with a scale for each block of a row, from a checkpoint or rounded.

Readers of quantized checkpoints make them (`exporter/quantized/`, `exporter/gguf/`), and `--weights
int4|int8` rounds others to them. Graphs read the integers as they lie (`marks.py`), a build stores
them in parts (`parts.py`), and whoever wants numbers reads them dequantized.
"""

from snapexport.exporter.integers.weight import LARGEST_SCALE, Form, Fp4, IntegerRows, IntegerWeight

__all__ = ["LARGEST_SCALE", "Form", "Fp4", "IntegerRows", "IntegerWeight"]
