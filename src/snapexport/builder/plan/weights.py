"""Computes the bytes of weights: stored in a build, held while it runs, and read by a step."""

from math import ceil, prod
from typing import TYPE_CHECKING

from snapexport.builder import BuildOptions
from snapexport.builder.plan.model import PlannedForms, PlannedModel
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_kind import Run
from snapexport.contract.graph_kinds import kinds_of
from snapexport.contract.targets import capabilities
from snapexport.files.dtypes import BY_FLAG

if TYPE_CHECKING:
    from snapexport.exporter.weights.forms.integers import Form

_SCALE = 4
"""Bytes of an fp8 weight's scale (exporter.fp8)."""


def stored_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """Bytes of all weights in the build; a tied head counts once."""
    item = BY_FLAG[options.dtype].bytes
    if forms := _forms(model, options):
        embedding = 0 if model.tied else _integer_bytes(*_table(model), forms.embedding, item)
        return model.others * item + embedding + _integers_bytes(model, forms, item)
    plain = (model.embedding + model.others) * item
    matrices = _linear_elements(model) + _expert_elements(model)
    in_dtype = (matrices - model.embedding * model.tied) * item
    return plain + in_dtype - (_fp8_saving(model, item) if options.weights else 0)


def held_bytes(model: PlannedModel, options: BuildOptions, geometry: CacheGeometry) -> int:
    """Bytes of weights in memory while the build runs (docs/speed.md).

    share_weights: one copy. Else a target with weights_per_graph: a copy for each prefill and each
    decode graph. fp32 on a CPU: one copy, mapped from the file by all sessions. Integers: also a
    rearranged copy of the linear layers for each session. fp16 on a CPU: an fp32 copy for each
    session, instead of the file. A layer that drafts counts as a layer of prefill and of decode,
    not as sessions of its own.
    """
    stored, sessions = stored_bytes(model, options), sessions_with_weights(options, geometry)
    if options.graph.share_weights:
        return stored
    if capabilities(options.target).weights_per_graph:
        return stored * sessions
    if forms := _forms(model, options):
        return stored + sessions * _integers_bytes(model, forms, BY_FLAG[options.dtype].bytes)
    if options.dtype == "fp16":
        return sessions * stored // BY_FLAG["fp16"].bytes * BY_FLAG["fp32"].bytes
    return stored


def read_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """Bytes of weights that a decode step reads: all but the embedding, which it indexes.

    Of experts, those that the tokens of all batch slots choose.
    """
    if forms := _forms(model, options):
        item = BY_FLAG[options.dtype].bytes
        read = _read_expert_share(model, options.batch)
        experts = round(read * _expert_bytes(model, forms.experts, item))
        moved = 2 * item * sum(_dequantized_elements(model, forms))
        return _linear_bytes(model, forms, item) + experts + moved
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
    written = experts + (-linear if model.fp8 and model.fp8.by_row else linear)
    return fp8_bytes(model, linear + experts) + written * item


def largest_dequantized_bytes(model: PlannedModel, options: BuildOptions) -> int:
    """Bytes of the largest weights dequantized at a time: a matrix, or a layer's experts."""
    item = BY_FLAG[options.dtype].bytes
    if forms := _forms(model, options):
        return max(_dequantized_elements(model, forms), default=0) * item
    if options.weights != "fp8" or model.fp8 is None:
        return 0
    sizes = [] if model.fp8.by_row else [prod(size) for size in model.fp8.linear]
    if model.fp8.experts and model.experts:
        sizes.append(model.experts.count * model.experts.elements)
    return max(sizes, default=0) * item


def _dequantized_elements(model: PlannedModel, forms: PlannedForms) -> list[int]:
    """Elements of what a step for a compiler dequantizes: matrices of 8 bits, layers of experts."""
    both = zip(model.linear, forms.linear, strict=True)
    found = [prod(size) for size, form in both if form and form.signed and not _as_stored(form)]
    if model.experts and forms.experts and forms.experts.signed:
        found += [model.experts.count * model.experts.elements] * model.experts.layers
    return found


def _as_stored(form: "Form") -> bool:
    """Whether a compiler multiplies with it as it is stored."""
    return form.bits == 4 and not form.floats


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


def sessions_with_weights(options: BuildOptions, geometry: CacheGeometry) -> int:
    """Number of graphs with weights of a run in chunks: of every size, and of every chunk."""
    chunks, run = options.chunks(geometry), Run(geometry=geometry, drafts=False)
    sizes = {
        "": 1,
        "batch": 1 + len(options.smaller_batches),
        "capacity": 1 + len(options.prefill_capacities),
    }
    return sum(
        sizes[kind.sized_by] * (len(chunks) if kind.shortens else 1)
        for kind in kinds_of(geometry, options.graph, chunks[-1]).values()
        if kind.has_weights and kind.loaded_if(run)
    )


def _linear_elements(model: PlannedModel) -> int:
    return sum(rows * columns for rows, columns in model.linear)


def _expert_elements(model: PlannedModel) -> int:
    """Weights of all experts."""
    experts = model.experts
    return experts.layers * experts.count * experts.elements if experts else 0


def _read_expert_share(model: PlannedModel, tokens: int) -> float:
    """The share of all experts that a step of `tokens` tokens reads."""
    return model.experts.used(tokens) / model.experts.count if model.experts else 0.0


def _forms(model: PlannedModel, options: BuildOptions) -> PlannedForms | None:
    """The forms of what is stored as integers; None: nothing is."""
    signed = capabilities(options.target).signed_integers
    return (model.signed_forms if signed else model.forms).get(options.weights or "")


def _table(model: PlannedModel) -> tuple[int, int]:
    """The embedding's rows and columns."""
    return model.facts.vocab_size, model.hidden_size


def _integers_bytes(model: PlannedModel, forms: PlannedForms, item: int) -> int:
    """Bytes of all products' weights, with their scales."""
    return _linear_bytes(model, forms, item) + _expert_bytes(model, forms.experts, item)


def _linear_bytes(model: PlannedModel, forms: PlannedForms, item: int) -> int:
    both = zip(model.linear, forms.linear, strict=True)
    return sum(_integer_bytes(rows, columns, form, item) for (rows, columns), form in both)


def _integer_bytes(rows: int, columns: int, form: "Form | None", item: int) -> int:
    """Bytes of a matrix in a form, with all its parts; of floats without."""
    if form is None:
        return rows * columns * item
    blocks, bits = ceil(columns / form.block), form.bits
    packed = blocks * form.block * bits // 8
    zeros = ceil(blocks * bits / 8) if form.zero is None else 0
    order = columns * 8 if form.ordered else 0
    of_scale = 1 if form.floats else item
    return order + rows * (packed + zeros + blocks * of_scale * (2 if form.minima else 1))


def _expert_bytes(model: PlannedModel, form: "Form | None", item: int) -> int:
    """Bytes of all experts. QMoE takes whole blocks, and no minima."""
    if (experts := model.experts) is None:
        return 0
    width, hidden = experts.width, experts.hidden_size
    if form and (width % form.block or hidden % form.block or form.minima or form.ordered):
        form = None
    ups = (experts.matrices - 1) * width
    one = _integer_bytes(ups, hidden, form, item) + _integer_bytes(hidden, width, form, item)
    return experts.layers * experts.count * one
