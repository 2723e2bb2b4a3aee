"""Reads compressed-tensors' schemes: how the weights of some modules are quantized."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from snapexport.errors import UserError
from snapexport.exporter.weights.readers.fp8 import WIDTH, Fp8Tensor, block_size
from snapexport.exporter.weights.readers.grouped import Groups, words_for
from snapexport.exporter.weights.readers.quantization import (
    AGAIN,
    FLOATS,
    KEY,
    LARGEST_GROUP,
    ORIGINAL,
    OfParts,
    array,
    left_out_of,
    numbers,
    require,
    require_matrix,
    require_names,
    require_one,
    require_value,
    require_values,
)
from snapexport.exporter.weights.readers.row_layouts import Fp4Rows, PackedRows, SignedRows
from snapexport.exporter.weights.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

Strategy = Literal["tensor", "channel", "group", "tensor_group", "block"]
_STRATEGIES: tuple[Strategy, ...] = ("tensor", "channel", "group", "tensor_group", "block")
_GROUPED = ("group", "tensor_group")
_WEIGHTS: dict[str, tuple[object, ...]] = {
    "type": ("int", "float"),
    "dynamic": (False,),
    "actorder": (None, False, "weight", "static", "group", "dynamic"),
    "is_mx": (None, False, True),
}
_NEUTRAL_OF_WEIGHTS = ("observer", "observer_kwargs", "scale_dtype", "zp_dtype")
"""Keys about calibration, and types that the tensors show."""
_REGEX = "re:"
_LONGEST = 300
"""Characters of a regular expression, and of a name that it is compared with."""
_REPEATS = 4
_NESTED = re.compile(r"\)[*+?{]")


@dataclass(frozen=True)
class Scheme:
    """targets: modules' names, `re:` and a regular expression, or classes such as Linear."""

    targets: tuple[str, ...]
    bits: int
    is_float: bool
    symmetric: bool
    strategy: Strategy
    size: tuple[int, int]

    @property
    def fp8_block(self) -> tuple[int, int]:
        """Rows and columns of the blocks of an fp8 weight."""
        match self.strategy:
            case "tensor":
                return WIDTH, WIDTH
            case "channel":
                return 1, WIDTH
        return self.size

    def groups(self, columns: int) -> Groups:
        """The groups of a row."""
        is_whole = self.strategy in ("tensor", "channel")
        return Groups(columns, columns if is_whole else min(self.size[1], columns))

    def scales(self, rows: int, columns: int) -> tuple[int, int]:
        """The shape of a weight's scales; (1, 1) if it has one."""
        if self.strategy == "tensor":
            return 1, 1
        return -(-rows // self.size[0]), self.groups(columns).count

    def names(self, module: str) -> bool:
        """Whether a target is the module's name, or a regular expression that fits it."""
        fitting = (one.removeprefix(_REGEX) for one in self.targets if one.startswith(_REGEX))
        return module in self.targets or (
            len(module) <= _LONGEST and any(re.match(one, module) for one in fitting)
        )

    @property
    def names_classes(self) -> bool:
        """Whether a target is a class of modules."""
        return any(not one.startswith(_REGEX) and "." not in one for one in self.targets)


def read_scheme(name: str, given: object) -> Scheme | None:
    """A scheme of `config_groups`; None if it has no weights. Raises UserError."""
    if not isinstance(given, dict):
        raise UserError(f"{KEY}: the group {name:.100} is not a table", "correct config.json")
    known = {key: given.get(key) for key in ("targets", "weights")}
    activations = ("input_activations", "output_activations", "format")
    require_values("compressed-tensors", given, {}, (*known, *activations))
    require_names("targets", known["targets"])
    if (weights := known["weights"]) is None:
        return None
    if not isinstance(weights, dict):
        raise UserError(f"{KEY}: the weights of {name:.100} are not a table", "correct config.json")
    return _scheme(tuple(map(_target, known["targets"] or ())), dict(weights))


def _scheme(targets: tuple[str, ...], weights: dict[str, Any]) -> Scheme:
    bits = numbers("num_bits", weights.pop("num_bits", 8), range(2, 9))
    symmetric = weights.pop("symmetric", True)
    require_value("symmetric", symmetric, (True, False))
    strategy, size = _strategy(weights)
    kind = weights.get("type", "int")
    require_values("compressed-tensors", weights, _WEIGHTS, _NEUTRAL_OF_WEIGHTS)
    if kind == "float":
        numbers("num_bits", bits, (4, 8))
        require_value("symmetric", symmetric, (True,))
    return Scheme(targets, bits, kind == "float", symmetric, strategy, size)


def _strategy(weights: dict[str, Any]) -> tuple[Strategy, tuple[int, int]]:
    """The strategy, and the rows and columns that share a scale; a strategy follows from these."""
    group, structure = weights.pop("group_size", None), weights.pop("block_structure", None)
    inferred = "tensor" if group is None else "channel" if group == -1 else "group"
    given = weights.pop("strategy", None) or inferred
    require_value("strategy", given, _STRATEGIES)
    (strategy,) = (one for one in _STRATEGIES if one == given)
    if strategy == "block":
        return strategy, block_size("block_structure", _as_list(structure))
    if strategy not in _GROUPED:
        return strategy, (1, LARGEST_GROUP)
    if type(group) is not int or not 1 <= group <= LARGEST_GROUP:
        raise UserError(
            f"{KEY}: group_size is {group!r:.100}, not a number from 1 to {LARGEST_GROUP}",
            "correct config.json",
        )
    return strategy, (1, group)


def _as_list(structure: object) -> object:
    """An older version's text, such as 128x128, as the list of its numbers."""
    if isinstance(structure, str) and re.fullmatch("[0-9]{1,9}x[0-9]{1,9}", structure):
        return [int(part) for part in structure.split("x")]
    return structure


def _target(target: str) -> str:
    """A target. Raises UserError for a regular expression that is none, or may take long."""
    if not target.startswith(_REGEX):
        return target
    pattern = target.removeprefix(_REGEX)
    repeats = sum(pattern.count(one) for one in "*+{")
    try:
        if len(pattern) <= _LONGEST and repeats <= _REPEATS and not _NESTED.search(pattern):
            re.compile(pattern)
            return target
    except (re.error, OverflowError, RecursionError):
        pass
    raise UserError(
        f"{KEY}: the target {target!r:.100} is not a regular expression, or is too long",
        "correct config.json",
    )


_FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "dense"),
)
_VALUES: dict[str, tuple[object, ...]] = {
    "format": _FORMATS,
    "quantization_status": ("compressed", "frozen"),
    "sparsity_config": (None, {}),
    "transform_config": (None, {}),
    "moe_sparsity_config": (None, {}),
}
_NEUTRAL = ("global_compression_ratio", "version", "run_compressed", "producer")
Parts = Mapping[str, TensorSpan]


@dataclass(frozen=True)
class CompressedTensors(OfParts):
    """schemes: of some modules each."""

    schemes: tuple[Scheme, ...]
    left_out: tuple[str, ...] = ()
    block: tuple[int, int] = (0, 0)
    kind = "compressed-tensors"
    needed = ("weight_scale",)
    possible = (
        *("weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx"),
        "weight_global_scale",
    )
    ignored = (
        *("input_scale", "input_zero_point", "input_global_scale"),
        *("output_scale", "output_zero_point"),
    )
    packed = "weight_packed"

    @classmethod
    def of(cls, given: dict[str, Any]) -> "CompressedTensors":
        """Read quantization_config without its method. Raises UserError."""
        groups, caches = given.pop("config_groups", None), given.pop("kv_cache_scheme", None)
        require_names("ignore", given.pop("ignore", None))
        sparsity = given.get("sparsity_config")
        if isinstance(sparsity, dict) and sparsity.get("format") == "dense":
            del given["sparsity_config"]
        if not isinstance(groups, dict):
            raise UserError(f"{KEY}: config_groups is not a table of groups", "correct config.json")
        require_values(cls.kind, given, _VALUES, _NEUTRAL)
        read = tuple(read_scheme(name, one) for name, one in groups.items())
        schemes = tuple(one for one in read if one)
        blocks = [one.fp8_block for one in schemes if one.is_float and one.bits == 8]
        return cls(schemes, left_out_of(groups, caches), blocks[0] if blocks else (0, 0))

    def weight(self, stem: str, parts: dict[str, TensorSpan]) -> Tensor:
        """The weight by the first scheme that fits, of those that name the module, or its class."""
        schemes = self.schemes
        if len(schemes) > 1:
            named = tuple(one for one in schemes if one.names(stem))
            schemes = named or tuple(one for one in schemes if one.names_classes) or schemes
        refusals = []
        for scheme in schemes:
            try:
                return _by_scheme(stem, parts, scheme)
            except UserError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]
        raise UserError(f"no group of {KEY} says how {stem} is quantized", "correct config.json")


def _by_scheme(stem: str, parts: Parts, scheme: Scheme) -> Tensor:
    packed = parts.get("weight_packed")
    whole = parts.get("weight")
    if packed is not None and packed.dtype == "U8":
        return _float_of_4_bits(stem, parts, scheme)
    if packed is not None:
        return _read_packed(stem, parts, scheme)
    assert whole is not None
    if whole.dtype == "F8_E4M3":
        _require_kind(stem, scheme, 8, is_float=True)
        grid = scheme.scales(*require_matrix(f"{stem}.weight", whole))
        name, scales = f"{stem}.weight", parts["weight_scale"]
        return Fp8Tensor.of(name, whole, scales, scheme.fp8_block, grid)
    return _read_signed(stem, parts, scheme)


def _read_packed(stem: str, parts: Parts, scheme: Scheme) -> Tensor:
    name, packed = f"{stem}.weight_packed", parts["weight_packed"]
    _require_kind(stem, scheme, scheme.bits, is_float=False)
    rows, words = require_matrix(name, packed)
    columns = words * 32 // scheme.bits
    if (shape := parts.get("weight_shape")) is not None:
        require(f"{stem}.weight_shape", shape, ("I64", "I32"), (2,))
        columns = int(np.asarray(array(shape)).astype(np.int64)[1])
    if not 0 < columns <= words * 32:
        raise UserError(f"the tensor {stem}.weight_shape has {columns} columns", AGAIN)
    require(name, packed, ("I32",), (rows, words_for(columns, scheme.bits)))
    return PackedRows(
        name=f"{stem}.weight",
        count=rows,
        bits=scheme.bits,
        weights=packed,
        **_common(stem, parts, scheme, rows, columns),
    ).readable


def _read_signed(stem: str, parts: Parts, scheme: Scheme) -> Tensor:
    _require_kind(stem, scheme, scheme.bits, is_float=False)
    rows, columns = require_matrix(f"{stem}.weight", parts["weight"])
    require(f"{stem}.weight", parts["weight"], ("I8",), (rows, columns))
    return SignedRows(
        name=f"{stem}.weight",
        count=rows,
        bits=8,
        weights=parts["weight"],
        **_common(stem, parts, scheme, rows, columns),
    ).readable


def _common(stem: str, parts: Parts, scheme: Scheme, rows: int, columns: int) -> dict[str, Any]:
    """The fields that integers have in either layout."""
    groups, wanted = scheme.groups(columns), scheme.scales(rows, columns)
    require_one(f"{stem}.weight_scale", parts["weight_scale"], FLOATS, wanted)
    zeros, g_idx = parts.get("weight_zero_point"), parts.get("weight_g_idx")
    if zeros is None and not scheme.symmetric:
        raise UserError(f"the checkpoint has {stem} without {stem}.weight_zero_point", AGAIN)
    if zeros is not None and zeros.dtype == "I32":
        of_words = words_for(rows, scheme.bits), groups.count
        require(f"{stem}.weight_zero_point", zeros, ("I32",), of_words)
    elif zeros is not None:
        require_one(f"{stem}.weight_zero_point", zeros, ("I8",), wanted)
    if g_idx is not None:
        require(f"{stem}.weight_g_idx", g_idx, ("I32", "I64"), (columns,))
        if (np.asarray(array(g_idx)) == -1).all():  # made, and never set
            g_idx = None
    return {
        "groups": groups,
        "scales": parts["weight_scale"],
        "zeros": zeros,
        "g_idx": g_idx,
        "symmetric": scheme.symmetric,
        "height": scheme.size[0] if scheme.strategy == "block" else 1,
    }


def _float_of_4_bits(stem: str, parts: Parts, scheme: Scheme) -> Tensor:
    _require_kind(stem, scheme, 4, is_float=True)
    packed, scales = parts["weight_packed"], parts["weight_scale"]
    rows, half = require_matrix(f"{stem}.weight_packed", packed)
    groups, divisor = scheme.groups(2 * half), parts.get("weight_global_scale")
    wanted = scheme.scales(rows, 2 * half)
    if divisor is None:
        require(f"{stem}.weight_scale", scales, ("U8", "F8_E8M0"), wanted)
    else:
        require(f"{stem}.weight_scale", scales, ("F8_E4M3", *FLOATS), wanted)
        require_one(f"{stem}.weight_global_scale", divisor, FLOATS, (1, 1))
    return Fp4Rows(
        name=f"{stem}.weight",
        count=rows,
        groups=groups,
        weights=packed,
        scales=scales,
        divisor=divisor,
    ).readable


def _require_kind(stem: str, scheme: Scheme, bits: int, *, is_float: bool) -> None:
    if scheme.is_float != is_float or scheme.bits != bits:
        kind = "float" if scheme.is_float else "int"
        raise UserError(
            f"{KEY} says that {stem} is of type {kind} with {scheme.bits} bits, and its tensors "
            "are not",
            ORIGINAL,
        )
