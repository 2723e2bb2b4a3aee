"""Bytes of the weights: as a build stores them, and as a running engine holds them."""

from math import ceil

from snapexport.builder import BuildOptions
from snapexport.builder.plan.model import PlannedModel
from snapexport.contract.bytes import DTYPE_BYTES

_BLOCK, _PACKED = 32, 16
"""int4: bytes of a block of 32 weights, beside its scale (exporter.int4)."""


def stored_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """One copy of all that the graphs read, in the build's form; a tied head is no second copy."""
    item = DTYPE_BYTES[options.dtype]
    plain = (model.embedding + model.others) * item
    if options.weights:
        return plain + _int4_bytes(model, item)
    return plain + (_linear_elements(model) - model.embedding * model.tied) * item


def held_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """While it runs.

    tensorrt: each plan that multiplies holds its own copy, that is prefill's and every decode's.
    onnxruntime and portable, fp32: one, mapped from the file by all the sessions. int4: each
    session rearranges the linear layers into a copy of its own beside the mapped file. fp16: the
    CPU provider multiplies in fp32 alone, so that every session keeps an fp32 copy of its own, and
    lets the mapped file go (docs/measurements.md).
    """
    stored, sessions = stored_bytes(model, options), sessions_with_weights(options)
    if options.target == "tensorrt":
        return stored * sessions
    if options.weights:
        return stored + sessions * _int4_bytes(model, DTYPE_BYTES[options.dtype])
    if options.dtype == "fp16":
        return sessions * stored // DTYPE_BYTES["fp16"] * DTYPE_BYTES["fp32"]
    return stored


def read_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """What a decode step reads: all but the embedding, of which it looks up a row for each slot."""
    if options.weights:
        return _int4_bytes(model, DTYPE_BYTES[options.dtype])
    converted = options.target != "tensorrt" and options.dtype == "fp16"
    item = DTYPE_BYTES["fp32" if converted else options.dtype]
    return (_linear_elements(model) + model.others) * item


def sessions_with_weights(options: BuildOptions) -> int:
    """Prefill's graph and the decode graphs: one for all the slots, and those for fewer."""
    return 2 + len(options.smaller_batches)


def _linear_elements(model: PlannedModel) -> int:
    return sum(rows * columns for rows, columns in model.linear)


def _int4_bytes(model: PlannedModel, item: int) -> int:
    """Blocks of 32 along K, and their scales."""
    blocks = sum(rows * ceil(columns / _BLOCK) for rows, columns in model.linear)
    return blocks * (_PACKED + item)
