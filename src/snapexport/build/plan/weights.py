"""Computes the bytes of weights: stored in a build, held while it runs, and read by a step."""

from math import ceil

from snapexport.build import BuildOptions
from snapexport.build.plan.model import PlannedModel
from snapexport.contract.targets import capabilities
from snapexport.files.dtypes import BY_FLAG

_BLOCK, _PACKED = 32, 16
"""int4: bytes of a block of 32 weights, beside its scale (exporter.int4)."""

_SCALE = 4
"""Bytes of an fp8 weight's scale (exporter.fp8)."""


def stored_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """Bytes of all weights in the build; a tied head counts once."""
    item = BY_FLAG[options.dtype].bytes
    plain = (model.embedding + model.others) * item
    if options.weights == "int4":
        return plain + _int4_bytes(model, item)
    matrices = _linear_elements(model) + _expert_elements(model)
    in_dtype = (matrices - model.embedding * model.tied) * item
    return plain + in_dtype - (_fp8_saving(model, item) if options.weights else 0)


def held_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """Bytes of weights in memory while the build runs (docs/speed.md).

    share_weights: one copy. Else a target with weights_per_graph: a copy for each prefill and each
    decode graph. fp32 on a CPU: one copy, mapped from the file by all sessions. int4: also a
    rearranged copy of the linear layers for each session. fp16 on a CPU: an fp32 copy for each
    session, instead of the file. Multi-token prediction counts as a layer of prefill and of decode,
    not as sessions of its own.
    """
    stored, sessions = stored_bytes(model, options), sessions_with_weights(options)
    if options.graph.share_weights:
        return stored
    if capabilities(options.target).weights_per_graph:
        return stored * sessions
    if options.weights == "int4":
        return stored + sessions * _int4_bytes(model, BY_FLAG[options.dtype].bytes)
    if options.dtype == "fp16":
        return sessions * stored // BY_FLAG["fp16"].bytes * BY_FLAG["fp32"].bytes
    return stored


def read_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """Bytes of weights that a decode step reads: all but the embedding, which it indexes.

    Of experts, those that the tokens of all batch slots choose.
    """
    if options.weights == "int4":
        item = BY_FLAG[options.dtype].bytes
        read = _read_expert_share(model, options.batch)
        return _linear_int4_bytes(model, item) + round(read * _experts_int4_bytes(model, item))
    converted = not capabilities(options.target).runs_on_gpu and options.dtype == "fp16"
    item = BY_FLAG["fp32" if converted else options.dtype].bytes
    experts = round(_read_expert_share(model, options.batch) * _expert_elements(model))
    read = (_linear_elements(model) + experts + model.others) * item
    return read + dequantizing_bytes(model, item) if options.weights == "fp8" else read


def dequantizing_bytes(model: PlannedModel, item: int) -> int:
    """Bytes that a step moves beside those of a build without fp8: reading what is kept in fp8, and
    writing it in `item` bytes, from where products read it.

    Of experts all are dequantized, chosen or not (docs/how-to/build.md).
    """
    linear, experts = _fp8_elements(model)
    return sum(fp8_bytes(model, kept) + kept * item for kept in (linear, experts))


def largest_dequantized_bytes(model: PlannedModel, item: int) -> int:
    """Bytes of the largest weights dequantized at a time: a matrix, or a layer's experts."""
    if model.fp8 is None:
        return 0
    sizes = [rows * columns for rows, columns in model.fp8.linear]
    if model.fp8.experts and model.experts:
        sizes.append(model.experts.count * model.experts.elements)
    return max(sizes, default=0) * item


def _fp8_elements(model: PlannedModel) -> tuple[int, int]:
    """Elements of linear layers and of experts that stay in fp8."""
    if model.fp8 is None:
        return 0, 0
    linear = sum(rows * columns for rows, columns in model.fp8.linear)
    return linear, _expert_elements(model) * model.fp8.experts


def fp8_bytes(model: PlannedModel, elements: int) -> int:
    """Bytes in fp8, with an fp32 scale for each block of a row."""
    return elements + ceil(elements / model.fp8.width) * _SCALE if model.fp8 else 0


def _fp8_saving(model: PlannedModel, item: int) -> int:
    elements = sum(_fp8_elements(model))
    return elements * item - fp8_bytes(model, elements)


def sessions_with_weights(options: BuildOptions) -> int:
    """Number of graphs with weights: prefill and decode of every size."""
    forms = 2 if options.tokens_per_step > 1 else 1  # of decode
    return 1 + len(options.prefill_capacities) + forms * (1 + len(options.smaller_batches))


def _linear_elements(model: PlannedModel) -> int:
    return sum(rows * columns for rows, columns in model.linear)


def _expert_elements(model: PlannedModel) -> int:
    """Weights of all experts."""
    experts = model.experts
    return experts.layers * experts.count * experts.elements if experts else 0


def _read_expert_share(model: PlannedModel, tokens: int) -> float:
    """The share of all experts that a step of `tokens` tokens reads."""
    return model.experts.used(tokens) / model.experts.count if model.experts else 0.0


def _int4_bytes(model: PlannedModel, item: int) -> int:
    """Bytes of 4-bit weights, with their scales."""
    return _linear_int4_bytes(model, item) + _experts_int4_bytes(model, item)


def _linear_int4_bytes(model: PlannedModel, item: int) -> int:
    """Bytes of linear layers in blocks of 32 along K."""
    blocks = sum(rows * ceil(columns / _BLOCK) for rows, columns in model.linear)
    return blocks * (_PACKED + item)


def _experts_int4_bytes(model: PlannedModel, item: int) -> int:
    if (experts := model.experts) is None:
        return 0
    blocks = 2 * experts.width * ceil(experts.hidden_size / _BLOCK)
    blocks += experts.hidden_size * ceil(experts.width / _BLOCK)
    return experts.layers * experts.count * blocks * (_PACKED + item)
