"""torchao's weights as its tensors are stored in safetensors: of 8 bits, with a scale for a group.

x._weight_qdata int8 [N,K], x._weight_scale [N,groups], and x._weight_zero_point, which may be left
out: w = (q - zero) * scale. Or qdata is fp8, with a scale for each row. Tensors show it all.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

from snapexport.errors import UserError
from snapexport.exporter.weights.readers.fp8 import WIDTH, fp8_by_shapes
from snapexport.exporter.weights.readers.grouped import Groups
from snapexport.exporter.weights.readers.quantization import (
    AGAIN,
    FLOATS,
    ORIGINAL,
    OfParts,
    array,
    left_out_of,
    require,
    require_matrix,
    require_names,
    require_one,
    require_values,
)
from snapexport.exporter.weights.readers.row_layouts import SignedRows
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

_NEUTRAL = ("quant_type", "quant_type_kwargs", "include_input_output_embeddings")


@dataclass(frozen=True)
class TorchAo(OfParts):
    """Tensors show which modules are quantized, and how."""

    left_out: tuple[str, ...] = ()
    block: tuple[int, int] = (1, WIDTH)
    kind = "torchao"
    needed = ("_weight_qdata", "_weight_scale")
    possible = ("_weight_zero_point",)
    packed = "_weight_qdata"

    @classmethod
    def of(cls, given: dict[str, Any]) -> "TorchAo":
        """Read quantization_config without its method. Raises UserError."""
        require_names("modules_to_not_convert", given.pop("modules_to_not_convert", None))
        require_values(cls.kind, given, {"untie_embedding_weights": (False, True)}, _NEUTRAL)
        named = str(given.get("quant_type"))
        return cls(left_out_of({"": {"input_activations": "ynamic" in named}}, None))

    def weight(self, stem: str, parts: dict[str, TensorSpan]) -> Tensor:
        """The integers of a matrix, or the matrix in fp8."""
        name, stored, scales = f"{stem}.weight", parts["_weight_qdata"], parts["_weight_scale"]
        if stored.dtype == "F8_E4M3":
            return fp8_by_shapes(name, stored, scales)
        if stored.dtype != "I8":
            raise UserError(
                f"the tensor {stem}._weight_qdata is stored as {stored.dtype}: of torchao's types "
                "int8 and fp8 are read",
                ORIGINAL,
            )
        rows, columns = require_matrix(name, stored)
        of_row = max(1, prod(scales.shape) // rows)
        if columns % of_row:
            raise UserError(
                f"{stem}._weight_scale has {of_row} scales for {columns} columns", AGAIN
            )
        wanted = (1, 1) if prod(scales.shape) == 1 else (rows, of_row)
        require_one(f"{stem}._weight_scale", scales, FLOATS, wanted)
        if (zeros := parts.get("_weight_zero_point")) is not None:
            require(f"{stem}._weight_zero_point", zeros, ("I8",), scales.shape)
            zeros = zeros if array(zeros).any() else None
        weight = SignedRows(
            name=name,
            count=rows,
            groups=Groups(columns, columns // of_row),
            bits=8,
            weights=stored,
            scales=scales,
            zeros=zeros,
        )
        return weight.readable
