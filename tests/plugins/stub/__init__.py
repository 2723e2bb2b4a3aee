"""Drives plugins through the STUB registry (registry.cpp). Nothing here is TensorRT."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

HERE = Path(__file__).parent
HEADERS = [Path("/usr/include/x86_64-linux-gnu"), Path("/usr/include/aarch64-linux-gnu")]
CUDA = Path("/usr/local/cuda/include")

TYPES = {torch.float32: 0, torch.float16: 1, torch.int32: 3, torch.bfloat16: 7, torch.int64: 8}


def tensorrt_headers() -> Path | None:
    """The folder of TensorRT's own headers, where there is one."""
    named = os.environ.get("SNAPEXPORT_TENSORRT_INCLUDE_DIR")
    folders = [Path(named)] if named else HEADERS
    return next((folder for folder in folders if (folder / "NvInferRuntime.h").is_file()), None)


class Described(ctypes.Structure):
    _fields_: ClassVar[Sequence[tuple[str, Any]]] = [
        ("type", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("d", ctypes.c_int64 * 8),
    ]


class Field(ctypes.Structure):
    _fields_: ClassVar[Sequence[tuple[str, Any]]] = [
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("length", ctypes.c_int32),
    ]


def described(tensor: Tensor, format_: int = 0) -> Described:
    return Described(
        TYPES[tensor.dtype], format_, tensor.dim(), (ctypes.c_int64 * 8)(*tensor.shape)
    )


def field(name: str, value: Any) -> tuple[Field, Any]:
    """A field as TensorRT's ONNX parser makes it, and the buffer that has to stay alive."""
    if isinstance(value, str):
        buffer: Any = ctypes.create_string_buffer(value.encode())
        kind, length = 6, len(value)
    elif isinstance(value, float):
        buffer, kind, length = (ctypes.c_float * 1)(value), 1, 1
    else:
        values = value if isinstance(value, list) else [value]
        buffer, kind, length = (ctypes.c_int32 * len(values))(*values), 5, len(values)
    return Field(name.encode(), ctypes.addressof(buffer), kind, length), buffer


class Registry:
    def __init__(self, library: Path) -> None:
        # Global, as libnvinfer is for a library that registers itself.
        self.library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        for name in ("create", "deserialize", "clone", "attach"):
            getattr(self.library, f"stub_{name}").restype = ctypes.c_void_p
        for name in ("name", "messages", "fields"):
            getattr(self.library, f"stub_{name}").restype = ctypes.c_char_p
        self.library.stub_workspace.restype = ctypes.c_size_t

    def load(self, library: Path) -> bool:
        return bool(self.library.stub_load(str(library).encode()) == 0)

    def names(self) -> list[str]:
        count = self.library.stub_count()
        return [self.library.stub_name(index).decode() for index in range(count)]

    def fields(self, name: str) -> list[str]:
        text = self.library.stub_fields(self.names().index(name))
        return str(text.decode()).split()

    def messages(self) -> str:
        return str(self.library.stub_messages().decode())

    def create(self, name: str, attributes: dict[str, Any]) -> "Plugin | None":
        made = [field(key, value) for key, value in attributes.items()]
        fields = (Field * len(made))(*(one for one, _ in made))
        return self.plugin(self.library.stub_create(name.encode(), fields, len(made)))

    def plugin(self, handle: int | None) -> "Plugin | None":
        return Plugin(self.library, handle) if handle else None


class Plugin:
    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self.library, self.handle = library, ctypes.c_void_p(handle)

    def another(self, how: str) -> "Plugin":
        """Another plugin, by clone, attach (to a context) or deserialize."""
        handle = getattr(self.library, f"stub_{how}")(self.handle)
        assert handle
        return Plugin(self.library, handle)

    def destroy(self) -> None:
        self.library.stub_destroy(self.handle)

    def supports(self, position: int, tensors: list[Described], inputs: int) -> bool:
        array = (Described * len(tensors))(*tensors)
        outputs = len(tensors) - inputs
        return bool(self.library.stub_supports(self.handle, position, array, inputs, outputs))

    def outputs(self, inputs: list[Tensor], count: int) -> list[tuple[int, list[int]]] | None:
        """Type and shape of each output."""
        given = (Described * len(inputs))(*(described(one) for one in inputs))
        out = (Described * count)()
        if self.library.stub_outputs(self.handle, given, len(inputs), out, count):
            return None
        return [(one.type, list(one.d)[: one.rank]) for one in out]

    def configure(self, tensors: list[Tensor], inputs: int) -> bool:
        array = (Described * len(tensors))(*(described(one) for one in tensors))
        outputs = len(tensors) - inputs
        return bool(self.library.stub_configure(self.handle, array, inputs, outputs) == 0)

    def run(self, inputs: list[Tensor], outputs: list[Tensor]) -> int:
        tensors = [*inputs, *outputs]
        array = (Described * len(tensors))(*(described(one) for one in tensors))
        counts = (len(inputs), len(outputs))
        size = self.library.stub_workspace(self.handle, array, *counts)
        workspace = torch.full((size + 256,), 0xFF, dtype=torch.uint8)
        aligned = workspace.data_ptr() + -workspace.data_ptr() % 256
        memory = (ctypes.c_void_p * len(tensors))(*(one.data_ptr() for one in tensors))
        place = ctypes.c_void_p(aligned)
        status = self.library.stub_run(self.handle, array, *counts, memory, place)
        return int(status)
