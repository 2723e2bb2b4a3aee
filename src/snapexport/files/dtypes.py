"""The table of element types: how many bits they have, and how each library spells them.

Imports no library; `numpy` needs ml_dtypes for types that NumPy itself lacks.
"""

from dataclasses import dataclass
from typing import Literal, get_args

DType = Literal["fp32", "fp16", "bf16"]
CacheDType = Literal["fp32", "fp16", "bf16", "int8"]
DTYPES: tuple[DType, ...] = get_args(DType)
CACHE_DTYPES: tuple[CacheDType, ...] = get_args(CacheDType)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementType:
    """One type, by its names. "": the library, or none of our graphs, has it.

    numpy: also of torch, config.json and the manifest. flag: of `--dtype` and `--cache-dtype`.
    onnx: in its enumeration DataType, for types of our graphs. tensorrt: in TensorRT's DataType.
    """

    numpy: str
    bits: int
    safetensors: str
    flag: str = ""
    onnx: str = ""
    tensorrt: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of an element, of whole bytes."""
        return self.bits // 8


def _type(numpy: str, bits: int, safetensors: str, **others: str) -> ElementType:
    return ElementType(numpy=numpy, bits=bits, safetensors=safetensors, **others)


ELEMENT_TYPES = (
    _type("float32", 32, "F32", flag="fp32", onnx="FLOAT", tensorrt="FLOAT"),
    _type("float16", 16, "F16", flag="fp16", onnx="FLOAT16", tensorrt="HALF"),
    _type("bfloat16", 16, "BF16", flag="bf16", onnx="BFLOAT16", tensorrt="BF16"),
    _type("int8", 8, "I8", flag="int8", onnx="INT8", tensorrt="INT8"),
    _type("int4", 4, "", onnx="INT4", tensorrt="INT4"),
    _type("uint8", 8, "U8", onnx="UINT8", tensorrt="UINT8"),
    _type("float8_e4m3fn", 8, "F8_E4M3", onnx="FLOAT8E4M3FN", tensorrt="FP8"),
    _type("bool", 8, "BOOL", onnx="BOOL", tensorrt="BOOL"),
    _type("int32", 32, "I32", onnx="INT32", tensorrt="INT32"),
    _type("int64", 64, "I64", onnx="INT64", tensorrt="INT64"),
    _type("int16", 16, "I16"),
    _type("uint16", 16, "U16"),
    _type("uint32", 32, "U32"),
    _type("uint64", 64, "U64"),
    _type("float64", 64, "F64"),
    _type("complex64", 64, "C64"),
    _type("float8_e5m2", 8, "F8_E5M2"),
    _type("float8_e8m0fnu", 8, "F8_E8M0"),
    _type("float6_e2m3fn", 6, "F6_E2M3"),
    _type("float6_e3m2fn", 6, "F6_E3M2"),
    _type("float4_e2m1fn", 4, "F4", onnx="FLOAT4E2M1", tensorrt="FP4"),
)
"""All the types of the safetensors library, which has the others' but int4."""

OF_GRAPHS = tuple(found for found in ELEMENT_TYPES if found.onnx)
BY_NUMPY = {found.numpy: found for found in OF_GRAPHS}
BY_FLAG = {found.flag: found for found in ELEMENT_TYPES if found.flag}
BY_TENSORRT = {found.tensorrt: found for found in OF_GRAPHS}
BY_SAFETENSORS = {found.safetensors: found for found in ELEMENT_TYPES if found.safetensors}


def of_tensorrt(name: str) -> str:
    """The manifest's name of a type, by TensorRT's; an unknown name is returned unchanged."""
    return BY_TENSORRT[name].numpy if name in BY_TENSORRT else name
