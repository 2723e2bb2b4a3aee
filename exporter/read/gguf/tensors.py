"""The tensors of a GGUF file under the checkpoint's names: as integers, or as floats.

Names come from the package `gguf`; what llama.cpp's converter did to values and rows is undone by
transformers' processors. A tensor of plain floats that needs neither is read from the file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.read.gguf.header import (
    DOWNLOAD_AGAIN,
    ORIGINAL,
    BlockSizes,
    GgufHeader,
    StoredTensor,
)
from snapexport.exporter.weights.forms.integers import (
    LARGEST_SCALE,
    Form,
    IntegerRows,
    IntegerWeight,
)
from snapexport.exporter.weights.readers.gguf import KINDS, Bytes, Kind, Parts
from snapexport.exporter.weights.tensor_file import Calculated
from snapexport.files.safetensors import TensorSpan

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_MOST = 1 << 20
"""Elements read at a time: that takes several times their memory."""


@dataclass(frozen=True, eq=False)
class GgufIntegers(IntegerWeight):
    """A matrix. moved: the file's row for each of its rows; None: in order. factor: of all."""

    file: Path
    name: str
    stored: StoredTensor
    kind: Kind
    block_bytes: int
    moved: NDArray[np.int64] | None = None
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def form(self) -> Form:
        return self.kind.form

    def rows(self, most: int) -> Iterator[IntegerRows]:
        """All rows in order, about `most` elements at a time. Raises UserError for bad values."""
        count, columns = self.shape
        shape = count, self.stored.nbytes // count
        raw = np.memmap(self.file, np.uint8, "r", self.stored.offset, shape=shape)
        step = max(1, min(most, _MOST) // columns)
        for start in range(0, count, step):
            end = start + step
            some = raw[start:end] if self.moved is None else raw[self.moved[start:end]]
            yield self._rows(np.asarray(some))

    def _rows(self, some: Bytes) -> IntegerRows:
        count = len(some)
        with np.errstate(invalid="ignore"):
            parts = self._scale(self.kind.parts(some.reshape(-1, self.block_bytes)))
        for values in (parts.scales, parts.minima):
            if values is not None and not (np.abs(values) < LARGEST_SCALE).all():
                raise UserError(
                    f"a scale of the tensor {self.name} of {self.file} is NaN or infinite",
                    DOWNLOAD_AGAIN,
                )
        q, scales = parts.q.reshape(count, -1), parts.scales.reshape(count, -1)
        if parts.minima is None:
            return IntegerRows(q, scales)
        assert self.form.zero is not None
        moved = q + np.uint8(self.form.zero)
        return IntegerRows(moved, scales, minima=parts.minima.reshape(count, -1))

    def _scale(self, parts: Parts) -> Parts:
        if self.factor == 1:
            return parts
        minima = None if parts.minima is None else parts.minima * self.factor
        return Parts(parts.q, parts.scales * self.factor, minima)


ROPE_FACTORS = "rope_freqs.weight"
_FACTOR, _OF_ACTIVATIONS = "scale", "input_scale"
_PLAIN = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
"""ggml's names of the types that .safetensors files have too, and the names there."""
_BLOCK = 1 << 20
"""Elements dequantized at a time: that takes several times their memory."""


@dataclass(frozen=True, eq=False)
class GgufTensor(Calculated):
    """A tensor that has to be calculated, as float32.

    rows: the file's row for each row of the tensor; None: in order. values: of a vector, which
    is calculated at once.
    """

    file: Path
    stored: StoredTensor
    rows: NDArray[np.int64] | None = None
    values: NDArray[np.float32] | None = None
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def blocks(self, multiple: int, most: int) -> Iterator[NDArray[np.float32]]:
        """The elements in order, flat, in blocks of whole rows, of about `most` elements."""
        if self.values is not None:
            yield self.values
            return
        columns, raw = self.shape[-1], _raw(self.file, self.stored)
        assert columns % multiple == 0, (columns, multiple)
        step = max(1, min(most, _BLOCK) // columns)
        for start in range(0, len(raw), step):
            end = start + step
            block = raw[start:end] if self.rows is None else raw[self.rows[start:end]]
            yield _dequantize(block, self.stored.kind).reshape(-1)


def block_sizes() -> BlockSizes:
    """The types of tensors that `gguf` knows."""
    from gguf import GGML_QUANT_SIZES

    return {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}


def rope_factors(header: GgufHeader) -> NDArray[np.float32] | None:
    """The divisors of RoPE's frequencies, if the file says."""
    stored = header.tensors.get(ROPE_FACTORS)
    if stored is None:
        return None
    factors = _dequantize(_raw(stored.file or header.file, stored), stored.kind).reshape(-1)
    return None if (factors == 1).all() else factors


def read_tensors(
    header: GgufHeader, config: "PretrainedConfig", parameters: Mapping[str, tuple[int, ...]]
) -> dict[str, TensorSpan | Calculated]:
    """The file's tensors, by the names of the model's parameters. Raises UserError.

    parameters: {name: shape} of the model.
    """
    architecture = str(header.metadata["general.architecture"])
    names = _names(architecture, config.num_hidden_layers, parameters)
    processor = _processor(architecture, config)
    found = {}
    for name, stored in header.tensors.items():
        if name == ROPE_FACTORS or _belongs_to_a_weight(name, header):
            continue
        if name not in names:
            raise UserError(
                f"{header.file} has the tensor {name!r:.100}, which a {config.model_type} model "
                "does not have",
                ORIGINAL,
            )
        if stored.shape != parameters[names[name]]:
            raise UserError(
                f"the tensor {name} of {header.file} has shape {list(stored.shape)}, its metadata "
                f"wants {list(parameters[names[name]])}",
                ORIGINAL,
            )
        tensor = _tensor(stored.file or header.file, name, stored, processor)
        found[names[name]] = _multiply(tensor, name, header)
    return found


def _belongs_to_a_weight(name: str, header: GgufHeader) -> bool:
    """Whether it is a weight's factor, or that of its activations, which stay as they are."""
    stem, _, end = name.rpartition(".")
    return end in (_FACTOR, _OF_ACTIVATIONS) and f"{stem}.weight" in header.tensors


def _multiply(
    tensor: TensorSpan | Calculated, name: str, header: GgufHeader
) -> TensorSpan | Calculated:
    """A weight with the one factor that NVFP4 has for all of it."""
    stem, _, end = name.rpartition(".")
    stored = header.tensors.get(f"{stem}.{_FACTOR}")
    if end != "weight" or stored is None:
        return tensor
    values = np.empty(0, np.float32)
    if prod(stored.shape) == 1 and _kind_name(stored.kind) in _PLAIN:
        values = _dequantize(_raw(stored.file or header.file, stored), stored.kind).reshape(-1)
    if not isinstance(tensor, GgufIntegers) or not values.size or not 0 < values[0] < np.inf:
        raise UserError(
            f"the tensor {stem}.{_FACTOR} of {header.file} is not a factor of quantized weights",
            ORIGINAL,
        )
    return replace(tensor, factor=float(values[0]))


def _names(
    architecture: str, layers: int, parameters: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """{name in the file: name in a checkpoint}."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    (number,) = (one for one, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(number, layers)
    suffixes = (".weight", ".bias")
    in_file = {name: names.get_name(name, try_suffixes=suffixes) for name in parameters}
    return {stored: name for name, stored in in_file.items() if stored}


def _processor(architecture: str, config: "PretrainedConfig") -> Any:
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    of_architecture: Any = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    return of_architecture(config=config.to_dict())


def _tensor(file: Path, name: str, stored: StoredTensor, processor: Any) -> TensorSpan | Calculated:
    kind = KINDS.get(_kind_name(stored.kind)) if len(stored.shape) == 2 else None
    if kind is None:
        _require_readable(file, name, stored)
    if len(stored.shape) == 1:
        vector = _dequantize(_raw(file, stored), stored.kind).reshape(-1)
        return GgufTensor(file, stored, values=processor.process(vector, name).weights)
    # A processor of matrices moves rows and nothing else: their numbers show it where to.
    numbers = np.arange(prod(stored.shape[:-1]))
    rows = processor.process(numbers[:, None], name).weights.reshape(-1)
    moved = not np.array_equal(rows, numbers)
    dtype = _PLAIN.get(_kind_name(stored.kind))
    if dtype and not moved:
        return TensorSpan(file, stored.offset, stored.nbytes, dtype, stored.shape)
    if kind:
        _, nbytes = block_sizes()[stored.kind]
        return GgufIntegers(file, name, stored, kind, nbytes, rows if moved else None)
    return GgufTensor(file, stored, rows=rows if moved else None)


def _require_readable(file: Path, name: str, stored: StoredTensor) -> None:
    _, nbytes = block_sizes()[stored.kind]
    try:
        _dequantize(np.zeros((1, nbytes), np.uint8), stored.kind)
    except NotImplementedError:
        raise UserError(
            f"the tensor {name} of {file} is of type {_kind_name(stored.kind)}, which the package "
            "`gguf` can't dequantize",
            "use a file of another quantization, such as Q8_0 or Q4_K_M",
        ) from None


def _kind_name(kind: int) -> str:
    from gguf import GGMLQuantizationType

    return str(GGMLQuantizationType(kind).name)


def _raw(file: Path, stored: StoredTensor) -> NDArray[np.uint8]:
    """The tensor's bytes [rows, bytes of a row], mapped."""
    rows = prod(stored.shape[:-1])
    shape = rows, stored.nbytes // rows
    return np.memmap(file, np.uint8, "r", stored.offset, shape=shape)


def _dequantize(rows: NDArray[np.uint8], kind: int) -> NDArray[np.float32]:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    values: NDArray[np.float32] = dequantize(rows, GGMLQuantizationType(kind))
    return values
