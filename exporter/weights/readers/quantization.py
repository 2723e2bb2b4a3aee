"""Helpers of all readers: `quantization_config`'s values, and the parts of a quantized tensor.

A method is a file with a class of its own; `METHODS` in `__init__.py` is their table.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from math import lcm, prod
from typing import Any, ClassVar, TypeVar

import ml_dtypes  # noqa: F401 (teaches NumPy the names of small floats)
import numpy as np
from numpy.typing import NDArray

from snapexport.errors import UserError
from snapexport.exporter.weights.forms.integers import E2M1, LARGEST_SCALE
from snapexport.exporter.weights.tensor_file import Tensor, hole
from snapexport.files.copying import is_hole
from snapexport.files.safetensors import TensorSpan

Value = TypeVar("Value", bound=np.generic)

KEY = "quantization_config"
ORIGINAL = "start from the original checkpoint"
LARGEST_GROUP = 1 << 20
AGAIN = "download the checkpoint again: the file is damaged or incomplete"
Spans = Mapping[str, TensorSpan]
Values = Mapping[str, tuple[object, ...]]


class Quantization(ABC):
    """How a checkpoint's weights are quantized.

    kind: the method's name. block: rows and columns that share an fp8 scale. of_some_families:
    whether only families that are published in it are read. left_out: what a build leaves out.
    """

    kind: ClassVar[str]
    of_some_families: ClassVar[bool] = False
    block: tuple[int, int] = (0, 0)
    left_out: tuple[str, ...] = ()

    @abstractmethod
    def tensors(self, stored: Spans) -> dict[str, Tensor]:
        """All tensors under the names of the model's parameters. Raises UserError."""


def require_names(name: str, value: object) -> None:
    """Raise UserError unless a key has a list of names, or nothing."""
    if value is None or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return
    raise UserError(f"{KEY}: {name} is not a list of names", "correct config.json")


_NEUTRAL = frozenset(
    "act_data_type act_dynamic act_group_aware act_group_size act_sym backend batch_size "
    "block_name_to_quantize cache_block_outputs damp_auto_increment damp_percent dataset "
    "disable_exllama exllama_config max_input_length meta model_file_base_name model_name_or_path "
    "model_seqlen module_name_preceding_first_block modules_in_block_to_quantize mse pad_token_id "
    "quant_block_list scale_dtype static_attention_granularity static_kv_granularity "
    "supported_types to_quant_block_names tokenizer true_sequential use_cuda_fp16 "
    "use_exllama".split()
)
"""Keys that transformers, GPTQModel, AutoAWQ and AutoRound write and that change no weight.

They are about kernels, calibration, and which modules and activations were quantized.
"""
_HISTORY = re.compile(
    r".*_version|disable_opt_rtn|provider|producer|quantizer|uri|created.*|telemetry"
    r"|(calib|dataset|damp|offload|gradient_|enable_.*tuning|enable_quanted|not_use_).*"
    r"|use_quant_input|n_?samples|num_.*samples|sampler|.*seq_?len|.*batch_size|train_bs|percdamp"
    r"|(.*_)?(iters|epochs|lr|seed)|amp|low_.*mem.*|dynamic_max_gap|fail_?safe|fallback|hessian"
    r"|gptaq|foem|(model|output|save)_.*path"
)
"""Keys of any tool that say how, with what, or by whom weights were made."""
_SHARED: Values = {
    "data_type": ("int", "int_sym", "int_asym", None),
    "act_bits": (16, 32, None),
    "super_bits": (None,),
    "super_group_size": (None,),
    "static_attention_dtype": (None,),
    "static_kv_dtype": (None,),
    "rotation_configs": (None, [], {}),
}
"""AutoRound writes them in the formats of others too."""
_LISTED = 3


def require_values(
    kind: str, given: Mapping[str, Any], known: Values, neutral: Iterable[str] = ()
) -> None:
    """Raise UserError for a key that may change weights and is not known, or has another value.

    neutral: keys that can have any value. What is null, empty, false or 0 switches nothing on.
    """
    known = {**_SHARED, **known}
    for name, value in given.items():
        if name in known:
            require_value(name, value, known[name])
        elif not (name in neutral or name in _NEUTRAL or _is_history(name, value)):
            raise UserError(
                f"{KEY} of the method {kind} has the unknown key {name!r:.100}",
                f"{ORIGINAL}; if the key changes no weight, remove it from config.json",
            )


def _is_history(name: str, value: object) -> bool:
    return value in (None, "", [], {}, False) or bool(_HISTORY.fullmatch(name))


def history(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Say which keys, of other tools, are not read for they change no weight."""
    found = [name for name in given if name not in _NEUTRAL and _HISTORY.fullmatch(name)]
    if not found:
        return ()
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return (f"not read, as they change no weight: {', '.join(found[:_LISTED])}{more} of {KEY}",)


def require_value(name: str, value: object, known: tuple[object, ...]) -> None:
    """Raise UserError for a value that is none of these."""
    if not any(type(value) is type(one) and value == one for one in known):
        raise UserError(
            f"{KEY}: {name} {value!r:.100} is not supported",
            f"{ORIGINAL}; {name} may be {' or '.join(map(repr, known))}",
        )


def numbers(name: str, value: object, known: Iterable[int]) -> int:
    """A number that is one of these. Raises UserError."""
    listed = tuple(known)
    require_value(name, value, listed)
    assert isinstance(value, int)
    return value


def group_size(value: object) -> int | None:
    """Columns that share a scale; None: all of a row. Raises UserError."""
    if type(value) is int and (value == -1 or 1 <= value <= LARGEST_GROUP):
        return None if value == -1 else value
    raise UserError(
        f"{KEY}: group_size is {value!r:.100}, not -1 or a number from 1 to {LARGEST_GROUP}",
        "correct config.json",
    )


FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_DTYPES = FLOATS | {"I32": "<u4", "U32": "<u4", "I64": "<i8", "U8": "uint8", "I8": "int8"}
_DTYPES |= {"F8_E4M3": "float8_e4m3fn", "F8_E8M0": "uint8"}
Found = dict[str, dict[str, TensorSpan]]


def without(stored: Spans, ends: Collection[str]) -> Spans:
    """The tensors but for parts that are not read, such as scales of activations."""
    return {name: one for name, one in stored.items() if name.rpartition(".")[2] not in ends}


def by_stem(
    stored: Spans, needed: Collection[str], possible: Collection[str] = ()
) -> tuple[Found, dict[str, TensorSpan]]:
    """The parts of each quantized tensor, by the name before them, and all other tensors.

    needed: the ends of the parts' names. Raises UserError where one is missing. possible: others.
    """
    ends, found = (*needed, *possible), Found()
    others = dict(stored)
    for name, span in stored.items():
        stem, _, end = name.rpartition(".")
        if end in ends:
            found.setdefault(stem, {})[end] = span
            del others[name]
    for stem, parts in found.items():
        for end in needed:
            if end not in parts:
                has = next(iter(parts))
                raise UserError(f"the checkpoint has {stem}.{has} without {stem}.{end}", AGAIN)
    return found, others


class OfParts(Quantization):
    """Reads weights `x.weight` of which a checkpoint has parts, each under a name `x.PART`.

    needed, possible: the parts. ignored: others that are not read, such as scales of activations.
    packed: the part that holds the values; empty, or where it is missing: `x.weight` itself.
    """

    needed: ClassVar[tuple[str, ...]]
    possible: ClassVar[tuple[str, ...]] = ()
    ignored: ClassVar[tuple[str, ...]] = ()
    packed: ClassVar[str] = ""

    def tensors(self, stored: Spans) -> dict[str, Tensor]:
        """With x.weight in the place of its parts."""
        found, others = by_stem(without(stored, self.ignored), self.needed, self.possible)
        made: dict[str, Tensor] = {}
        for stem, parts in found.items():
            if self.packed not in parts:
                parts["weight"] = with_weight(stem, parts, others)
            made[f"{stem}.weight"] = self.weight(stem, parts)
        if self.packed not in self.needed:
            require_scaled(others)
        return {**others, **made}

    @abstractmethod
    def weight(self, stem: str, parts: dict[str, TensorSpan]) -> Tensor:
        """The weight of some parts. Raises UserError for types and shapes that don't fit."""


def replace_pairs(
    stored: Spans,
    suffixes: tuple[str, str],
    made: Callable[[str, TensorSpan, TensorSpan], Tensor],
) -> dict[str, Tensor]:
    """The tensors, with pairs of values and scales replaced by what is `made` of them."""
    values, scales = suffixes
    stems = {
        name.removesuffix(end) for name in stored for end in suffixes if end and name.endswith(end)
    }
    parts = {stem + end for stem in stems for end in suffixes}
    for stem in sorted(stems):
        for end, other in ((values, scales), (scales, values)):
            if stem + end not in stored:
                raise UserError(
                    f"the checkpoint has the tensor {stem}{other} without {stem}{end}", AGAIN
                )
    kept: dict[str, Tensor] = {name: one for name, one in stored.items() if name not in parts}
    return kept | {
        stem: made(stem, stored[stem + values], stored[stem + scales]) for stem in sorted(stems)
    }


def require(name: str, span: TensorSpan, dtypes: Collection[str], shape: tuple[int, ...]) -> None:
    """Raise UserError for a part of another type or shape."""
    if span.dtype not in dtypes:
        types = " or ".join(dtypes)
        raise UserError(f"the tensor {name} is stored as {span.dtype}, not as {types}", ORIGINAL)
    if span.shape != shape:
        raise UserError(
            f"the tensor {name} has shape {list(span.shape)}, the others want {list(shape)}",
            f"check {KEY} in config.json against the files, or download the checkpoint again",
        )


def require_one(
    name: str, span: TensorSpan, dtypes: Collection[str], shape: tuple[int, int]
) -> None:
    """Check as `require`; one number, or one for each row, may have fewer dimensions."""
    alike = prod(span.shape) == prod(shape) and 1 in shape
    require(name, span, dtypes, span.shape if alike else shape)


def with_weight(stem: str, parts: Spans, others: dict[str, TensorSpan]) -> TensorSpan:
    """Take the weight that some parts belong to out of the others. Raises UserError."""
    if (found := others.pop(f"{stem}.weight", None)) is not None:
        return found
    raise UserError(f"the checkpoint has {stem}.{next(iter(parts))} without {stem}.weight", AGAIN)


def require_scaled(others: Spans) -> None:
    """Raise UserError for a quantized weight whose scales are missing."""
    for name, span in others.items():
        if name.endswith(".weight") and span.dtype in ("I8", "F8_E4M3", "U8", "I32", "U32"):
            raise UserError(f"the tensor {name} is {span.dtype} and has no scales", AGAIN)


def require_matrix(name: str, span: TensorSpan) -> tuple[int, int]:
    """The rows and columns of a part. Raises UserError."""
    if len(span.shape) != 2 or not prod(span.shape):
        raise UserError(
            f"the tensor {name} has shape {list(span.shape)}: it is not a matrix", AGAIN
        )
    rows, columns = span.shape
    return rows, columns


def array(span: TensorSpan) -> NDArray[Any]:
    """A part, mapped."""
    dtype = np.dtype(_DTYPES[span.dtype])
    return np.memmap(span.file, dtype, "r", span.offset, shape=span.shape)


def as_scales(name: str, values: NDArray[Any]) -> NDArray[np.float32]:
    """Values in fp32. Raises UserError for one that is not a scale."""
    scales: NDArray[np.float32] = np.ascontiguousarray(values).astype(np.float32)
    if not (np.abs(scales) < LARGEST_SCALE).all():
        raise UserError(f"a scale of the tensor {name} is NaN or infinite", AGAIN)
    return scales


_MOST = 1 << 22
"""Elements dequantized at a time: that takes several times their memory."""
Step = tuple[int, int, bool]


def rows_of(multiple: int, columns: int, most: int) -> int:
    """Rows to read at a time, so that their elements are a multiple of `multiple`."""
    least = lcm(multiple, columns) // columns
    return max(1, min(most, _MOST) // (least * columns)) * least


def steps(span: TensorSpan, rows: int, step: int) -> Iterator[Step]:
    """(start, end) of some of a tensor's rows, and whether a hole in the file makes them zeros."""
    row = span.nbytes // rows
    with span.file.open("rb") as file:
        for start in range(0, rows, step):
            end = min(start + step, rows)
            first, last = span.offset + start * row, span.offset + end * row
            yield start, end, is_hole(file.fileno(), first, last)


def zeros(size: int) -> NDArray[np.generic]:
    """Zeros that are written as a hole."""
    return hole(size, np.dtype(np.float32))


def map_bytes(span: TensorSpan) -> NDArray[np.uint8]:
    """The tensor's bytes, flat, mapped."""
    return np.memmap(span.file, np.uint8, "r", span.offset, shape=(span.nbytes,))


def left_out_of(groups: Mapping[str, object], caches: object) -> tuple[str, ...]:
    """Say what a build leaves out: quantized activations and caches."""
    notes = []
    of_groups = [one for one in groups.values() if isinstance(one, dict)]
    if any(
        one.get(key) for one in of_groups for key in ("input_activations", "output_activations")
    ):
        notes.append("activations stay in the build's dtype: the checkpoint's are quantized")
    if caches:
        notes.append("the checkpoint's scales of caches are not read: see --cache-dtype")
    return tuple(notes)


def pairs_of_bytes(values: NDArray[Value]) -> NDArray[Value]:
    """The two of 16 values that each byte stands for, first that of its low half: [256,2]."""
    both = np.arange(256)
    return np.stack([values[both & 15], values[both >> 4]], axis=-1)


@cache
def doubled_e2m1() -> NDArray[np.uint8]:
    """Floats of 4 bits as integers of 8 bits: twice the value, and 128 for 0."""
    return (128 + 2 * E2M1).astype(np.uint8)


def e8m0(stored: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Powers of two of 8 bits, 2^(stored - 127); 255 is NaN."""
    return _powers()[stored]


@cache
def _powers() -> NDArray[np.float32]:
    powers = np.ldexp(np.float64(1), np.arange(255) - 127)
    return np.append(powers, np.nan).astype(np.float32)
