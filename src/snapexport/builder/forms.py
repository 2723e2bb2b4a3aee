"""In which form a build holds and reads its compressed caches, and why some are not to be had."""

from typing import TYPE_CHECKING

from snapexport.contract.cache_form import (
    CACHE_DTYPES,
    DECODE_ATTENTIONS,
    CacheDType,
    CacheForm,
    DecodeAttention,
)
from snapexport.contract.errors import UserError
from snapexport.contract.manifest import Target

if TYPE_CHECKING:
    from snapexport.builder.options import BuildOptions

_TARGETS: dict[CacheDType, tuple[Target, ...]] = {
    "fp16": ("onnxruntime", "portable"),
    "int8": ("onnxruntime",),
}
"""Where a model in fp32 can have caches of another type."""


def form_of(options: "BuildOptions") -> CacheForm:
    """As the options ask for it. Raises UserError."""
    require_one_of("--cache-dtype", options.cache_dtype, CACHE_DTYPES)
    require_one_of("--decode-attention", options.decode_attention, DECODE_ATTENTIONS)
    dtype = None if options.cache_dtype == options.dtype else options.cache_dtype
    if dtype is not None:
        _require_to_be_had(dtype, options)
    attention = _attention(dtype, options.decode_attention)
    if attention == "valid":
        _require_operator(options)
    if options.policy == "full" and (dtype or attention == "valid"):
        flag = f"--cache-dtype {dtype}" if dtype else "--decode-attention valid"
        raise UserError(
            f"{flag} is about caches that are compressed, but --policy is full",
            "leave it out: the full cache has the build's dtype, and ONNX Runtime reads it up to "
            "the newest token",
        )
    return CacheForm(dtype, attention)


def _require_to_be_had(dtype: CacheDType, options: "BuildOptions") -> None:
    if options.dtype != "fp32" or options.target not in _TARGETS.get(dtype, ()):
        raise UserError(
            f"--cache-dtype {dtype} is not to be had for --target {options.target} "
            f"--dtype {options.dtype}",
            "caches differ from --dtype fp32 alone: fp16 for onnxruntime and portable, int8 for "
            "onnxruntime; with another --dtype they have that one",
        )


def _attention(dtype: CacheDType | None, given: DecodeAttention | None) -> DecodeAttention:
    """The operator for valid slots alone is the only one that takes 8 bits."""
    if dtype == "int8" and given == "all":
        raise UserError(
            "--cache-dtype int8 goes with attention to valid slots alone",
            "drop --decode-attention all",
        )
    if dtype == "fp16" and given == "valid":
        raise UserError(
            "--cache-dtype fp16 goes with attention to all slots alone: ONNX Runtime's operator "
            "for valid slots takes longer over fp16 than over fp32",
            "drop one of them, or use --cache-dtype int8",
        )
    return given or ("valid" if dtype == "int8" else "all")


def _require_operator(options: "BuildOptions") -> None:
    if options.target != "onnxruntime":
        raise UserError(
            f"--decode-attention valid is not to be had for --target {options.target}",
            "only ONNX Runtime has an operator that reads valid slots alone: use --target "
            "onnxruntime, or leave it out",
        )


def require_one_of(flag: str, value: str | None, allowed: tuple[str, ...]) -> None:
    """Raise UserError for a name that is not known. None: not given."""
    if value not in (None, *allowed):
        raise UserError(f"{flag} '{value}' is not known", f"choose from {', '.join(allowed)}")
