"""GPTQ's weights as GPTQModel and AutoGPTQ store them: packed along the columns of [K,N].

x.qweight int32 [K*bits/32,N], x.qzeros int32 [groups,N*bits/32], x.scales [groups,N], and x.g_idx
int32 [K], the group of each row of [K,N]. Version 1 stores a zero less one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.weights.readers.awq import Awq
from snapexport.exporter.weights.readers.grouped import (
    GroupedWeight,
    Groups,
    require_groups,
    unpack,
    words_for,
)
from snapexport.exporter.weights.readers.quantization import (
    FLOATS,
    KEY,
    ORIGINAL,
    OfParts,
    Quantization,
    array,
    group_size,
    left_out_of,
    numbers,
    require,
    require_matrix,
    require_names,
    require_value,
    require_values,
)
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

_BITS = (2, 3, 4, 8)
_FORMATS = ("gptq", "gptq_v2")
_VALUES: dict[str, tuple[object, ...]] = {
    "is_marlin_format": (False, None),
    "pack_dtype": ("int32",),
    "planar": (False, None),
    "adapter": (None,),
    "rotation": (None,),
    "method": ("gptq",),
}
_NEUTRAL = ("desc_act", "sym", "lm_head", "static_groups", "quant_method", "parallel_packing")
"""Keys that the tensors show."""


@dataclass(frozen=True)
class Gptq(OfParts):
    """less_one: what stored zeros lack. symmetric: None if nothing is said.

    dynamic: {pattern of modules' names: what they have otherwise}.
    """

    bits: int
    group: int | None
    less_one: bool
    dynamic: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    symmetric: bool | None = None
    left_out: tuple[str, ...] = ()
    kind = "gptq"
    needed = ("qweight", "qzeros", "scales")
    possible = ("g_idx",)
    packed = "qweight"

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Gptq":
        """Read quantization_config without its method. Raises UserError."""
        formats = {given.pop(name, None) for name in ("checkpoint_format", "format")} - {None}
        for name in formats:
            require_value("checkpoint_format", name, _FORMATS)
        if len(formats) > 1:
            raise UserError(f"{KEY} has two formats: {', '.join(sorted(formats))}", ORIGINAL)
        require_names("modules_to_not_convert", given.pop("modules_to_not_convert", None))
        bits = numbers("bits", given.pop("bits", None), _BITS)
        group = group_size(given.pop("group_size", 128))
        dynamic = _dynamic(given.pop("dynamic", None))
        notes = left_out_of({"": {"input_activations": given.pop("activation", None)}}, None)
        require_values(cls.kind, given, _VALUES, _NEUTRAL)
        symmetric = common_value("sym", [given])
        return cls(bits, group, formats != {"gptq_v2"}, dynamic, symmetric, notes)

    def weight(self, stem: str, parts: dict[str, TensorSpan]) -> Tensor:
        """The integers of a matrix."""
        packed, rows = require_matrix(f"{stem}.qweight", parts["qweight"])
        bits, g_idx = self._bits(rows, parts["qzeros"]), parts.get("g_idx")
        columns = packed * 32 // bits
        if g_idx is not None and len(g_idx.shape) == 1 and g_idx.nbytes:
            (columns,) = g_idx.shape
        groups, symmetric = self._groups(columns, parts["scales"]), self._symmetric(stem)
        require_groups(f"{stem}.scales", parts["scales"], groups)
        require(f"{stem}.qweight", parts["qweight"], ("I32",), (words_for(columns, bits), rows))
        zeros = groups.count, words_for(rows, bits)
        require(f"{stem}.qzeros", parts["qzeros"], ("I32",), zeros)
        require(f"{stem}.scales", parts["scales"], FLOATS, (groups.count, rows))
        if g_idx is not None:
            require(f"{stem}.g_idx", g_idx, ("I32", "I64"), (columns,))
        weight = GptqWeight(
            name=f"{stem}.weight",
            count=rows,
            groups=groups,
            bits=bits,
            g_idx=g_idx,
            weights=parts["qweight"],
            zeros=parts["qzeros"],
            scales=parts["scales"],
            less_one=self.less_one,
            symmetric=bool(symmetric),
        )
        return (weight if symmetric is not None else weight.without_slip).readable

    def _symmetric(self, stem: str) -> bool | None:
        """Symmetry as the first pattern of a module has it, or else all."""
        found = (one for name, one in self.dynamic.items() if re.match(_pattern(name), stem))
        return common_value("sym", [{"sym": self.symmetric} | dict(next(found, {}))])

    def _bits(self, rows: int, zeros: TensorSpan) -> int:
        """The bits of a matrix, which `dynamic` may give others than the rest."""
        for bits in _BITS if self.dynamic else ():
            if zeros.shape[1:] == (words_for(rows, bits),):
                return bits
        return self.bits

    def _groups(self, columns: int, scales: TensorSpan) -> Groups:
        groups = Groups(columns, min(self.group or columns, columns))
        found = scales.shape[0] if scales.shape else 0
        if self.dynamic and found and found != groups.count and columns % found == 0:
            return Groups(columns, columns // found)
        return groups


def common_value(name: str, tables: Iterable[Mapping[str, Any]]) -> bool | None:
    """The value that tables of modules give of a key; None if it isn't one thing."""
    found = {one[name] for one in tables if isinstance(one.get(name), bool)}
    return found.pop() if len(found) == 1 else None


def _pattern(name: str) -> str:
    """The pattern of `dynamic`, whose signs say whether modules are quantized."""
    return name.removeprefix("+:").removeprefix("-:")


def _dynamic(value: object) -> dict[str, dict[str, Any]]:
    """The modules that are quantized otherwise: their tensors show how, or that they aren't."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(one, dict) for one in value.values()):
        raise UserError(f"{KEY}: dynamic is not a table of modules", "correct config.json")
    for name, of_modules in value.items():
        try:
            re.compile(_pattern(name))
        except re.error:
            raise UserError(
                f"{KEY}: the pattern {name!r:.100} of dynamic cannot be read", "correct config.json"
            ) from None
        require_values("gptq", of_modules, _VALUES, ("bits", "group_size", *_NEUTRAL))
    return value


@dataclass(frozen=True, eq=False, kw_only=True)
class GptqWeight(GroupedWeight):
    """A matrix whose integers are packed along [K,N]'s columns. less_one: zeros lack 1."""

    weights: TensorSpan
    zeros: TensorSpan
    scales: TensorSpan
    less_one: bool

    def _integers(self, start: int, end: int) -> NDArray[np.uint8]:
        words = array(self.weights)[:, start:end].T
        return unpack(words, self.bits, self.groups.columns)

    def _zeros(self, start: int, end: int) -> NDArray[np.uint8]:
        first, last = start * self.bits // 32, words_for(end, self.bits)
        stored = np.ascontiguousarray(array(self.zeros)[:, first:last])
        if self.less_one and 8 % self.bits == 0:  # a borrow went on into the next zero
            stored = stored + np.uint32(0xFFFFFFFF // ((1 << self.bits) - 1))
        found = unpack(stored, self.bits, end - start)
        if self.less_one and 8 % self.bits:
            found = (found + np.uint8(1)) & np.uint8((1 << self.bits) - 1)
        return np.ascontiguousarray(found.T)

    def _scales(self, start: int, end: int) -> NDArray[np.generic]:
        return array(self.scales)[:, start:end].T


_AWQ = "auto_round:auto_awq"
_VERSIONS = {
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round": "gptq_v2",
}
_OF_WEIGHTS = ("bits", "group_size")
_FEWEST_WHOLE = 16


def read_auto_round(given: dict[str, Any]) -> Quantization:
    """Read quantization_config without its method. Raises UserError."""
    packing = given.pop("packing_format", "auto_round:auto_gptq")
    require_value("packing_format", packing, (*_VERSIONS, _AWQ))
    require_names("modules_to_not_convert", given.pop("modules_to_not_convert", None))
    layers = given.pop("extra_config", None) or {}
    if not isinstance(layers, dict) or not all(isinstance(one, dict) for one in layers.values()):
        raise UserError(f"{KEY}: extra_config is not a table of layers", "correct config.json")
    weights = {name: given.pop(name) for name in _OF_WEIGHTS if name in given}
    quantized = {name: one for name, one in layers.items() if not _is_whole(one)}
    for keys in (given, *quantized.values()):
        require_values("auto-round", keys, {}, (*_OF_WEIGHTS, "sym"))
    if packing == _AWQ:
        symmetric = common_value("sym", (given, *quantized.values()))
        return Awq.of(weights | {"zero_point": not symmetric})
    sym = {name: {"sym": one["sym"]} if "sym" in one else {} for name, one in layers.items()}
    dynamic = {f"{name}$": one for name, one in sym.items()}
    weights |= {
        "checkpoint_format": _VERSIONS[packing],
        "dynamic": dynamic,
        "sym": given.get("sym"),
    }
    return Gptq.of(weights)


def _is_whole(layer: dict[str, Any]) -> bool:
    """Whether a layer was left as it was, in floats."""
    bits = layer.get("bits")
    return isinstance(bits, int) and bits >= _FEWEST_WHOLE
