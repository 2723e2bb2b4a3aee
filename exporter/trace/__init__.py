"""Traces a decoder by PyTorch's exporter: prefill, and decode for any number of batch slots."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from snapexport.contract import names
from snapexport.errors import UserError
from snapexport.exporter.model import Decoder
from snapexport.exporter.model.config import position_limit
from snapexport.exporter.model.models import hidden_states_of, logits_of
from snapexport.exporter.model.ranks import cut_model, rename_whole
from snapexport.exporter.model.skeleton import skeleton
from snapexport.exporter.quiet import quiet
from snapexport.exporter.trace.repeated_layers import (
    NotRepeatableError,
    repeat_layers,
    traced_places,
)

BATCH = "batch"
"""The name of the dimension."""


def with_batch(model: ir.Model, batch: int) -> ir.Model:
    """A copy of a trace, for `batch` batch slots. `link` folds what follows from their number."""
    fixed = model.clone()
    for value in (*fixed.graph.inputs, *(v for node in fixed.graph for v in node.outputs)):
        if value.shape is not None:
            value.shape = ir.Shape([_size(dimension, batch) for dimension in value.shape])
    return fixed


def _size(dimension: int | ir.SymbolicDim, batch: int) -> int:
    if isinstance(dimension, int):
        return dimension
    size = dimension.evaluate({BATCH: batch})  # "batch", or "4*batch" where tokens are flattened
    assert isinstance(size, int), dimension
    return size


OPSET = 24
_MODEL_PREFIX = "model."
SLOTS = 2
"""Batch slots of the traced inputs: a dimension of 1 would be taken for a constant."""
SLOT_AXES = {0: torch.export.Dim(BATCH, min=1)}
"""The axis of batch slots, of an input with a row for each."""
Outputs = Tensor | tuple[Tensor, Tensor]
DynamicShapes = dict[str, Any]
"""{input: {axis: torch.export's Dim}}, as PyTorch takes it."""


class Step(nn.Module):
    """The calculation of a graph, of weights below `model`. hidden_states: make them an output."""

    def __init__(self, model: Any, decoder: Decoder, hidden_states: bool) -> None:
        super().__init__()
        self.model, self.decoder, self.hidden_states = model, decoder, hidden_states

    def run(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """The hidden states [B,C,E] of tokens [B,C] at positions [B,C]."""
        inside = self.model.get_submodule(self.decoder.names.decoder)
        states: Tensor = hidden_states_of(inside, input_ids, position_ids)
        return states

    def logits(self, hidden_states: Tensor) -> Tensor:
        """float32 [B,C,V] of hidden states [B,C,E], or [B,V] of one token each."""
        return logits_of(self.model, self.decoder, hidden_states)


class _Prefill(Step):
    """One chunk of one prompt: logits of its last valid token.

    input_ids [1,C], past_length [1], chunk_length [1] -> logits float32 [1,V], and if asked
    hidden_states [1,C,E].
    """

    def forward(self, input_ids: Tensor, past_length: Tensor, chunk_length: Tensor) -> Outputs:
        position_ids = past_length[:, None] + torch.arange(input_ids.shape[1])[None]
        if not self.decoder.rope:  # a table may end within the padding of a last block
            position_ids = position_ids.clamp(max=position_limit(self.decoder.config) - 1)
        hidden = self.run(input_ids, position_ids)
        # The model's own logits_to_keep would transpose the whole chunk, twice.
        logits = self.logits(hidden.index_select(1, chunk_length - 1))
        return (logits, hidden) if self.hidden_states else logits


class _Decode(Step):
    """A step of C tokens for each of B sequences.

    input_ids, position_ids [B,C] -> logits float32 [B,C,V], or [B,V] for one token, and if asked
    hidden_states [B,C,E].
    """

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Outputs:
        hidden = self.run(input_ids, position_ids)
        logits = self.logits(hidden)
        return (logits, hidden) if self.hidden_states else logits


def trace_prefill(
    decoder: Decoder,
    dtype: torch.dtype,
    chunk: int,
    hidden_states: bool = False,
    ranks: int = 1,
) -> ir.Model:
    """Trace prefill of `chunk` tokens of one prompt. hidden_states: make them an output.

    ranks: how many of them the model is cut for; the trace is one rank's, and each's.
    """
    shapes = {names.INPUT_IDS: (1, chunk), names.PAST_LENGTH: (1,), names.CHUNK_LENGTH: (1,)}
    cut = partial(cut_model, ranks=ranks)
    return _trace(decoder, dtype, _Prefill, shapes, hidden_states=hidden_states, cut=cut)


def trace_decode(
    decoder: Decoder,
    dtype: torch.dtype,
    hidden_states: bool = False,
    tokens: int = 1,
    ranks: int = 1,
    batch_parallel: bool = False,
) -> ir.Model:
    """Trace decode of some tokens of each batch slot, whose number is a dimension: `with_batch`.

    batch_parallel: latent attention will be, so that each rank needs what all heads read.
    """
    shapes = dict.fromkeys((names.INPUT_IDS, names.POSITION_IDS), (SLOTS, tokens))
    dynamic = dict.fromkeys(shapes, SLOT_AXES)
    cut = partial(cut_model, ranks=ranks, every_head_attends=batch_parallel)
    traced = _trace(decoder, dtype, _Decode, shapes, dynamic, hidden_states=hidden_states, cut=cut)
    if batch_parallel:
        rename_whole(traced)
    return traced


def _trace(
    decoder: Decoder,
    dtype: torch.dtype,
    step: Callable[[Any, Decoder, bool], nn.Module],
    shapes: Mapping[str, tuple[int, ...]],
    dynamic: DynamicShapes | None = None,
    *,
    hidden_states: bool = False,
    cut: Callable[[Any], None] | None = None,
) -> ir.Model:
    outputs = [names.LOGITS, *([names.HIDDEN_STATES] if hidden_states else [])]

    def trace(layers: Decoder) -> ir.Model:
        with skeleton(layers, dtype, cut) as (model, fake), torch.no_grad(), fake:
            inputs = {name: torch.empty(shape, dtype=torch.int64) for name, shape in shapes.items()}
            return export(step(model, layers, hidden_states).eval(), inputs, outputs, dynamic)

    places = traced_places(decoder)
    if places is not None:
        try:
            model = trace(decoder.left_with(places))
            repeat_layers(model, decoder, places)
            return model
        except NotRepeatableError:
            pass
    return trace(decoder)


def export(
    step: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    dynamic: DynamicShapes | None,
) -> ir.Model:
    """Export a module whose weights are below its `model`, under the checkpoint's names.

    Raises UserError for a model that PyTorch can't export.
    """
    with quiet(), _in_users_words():
        program: Any = torch.onnx.export(
            step,
            tuple(inputs.values()),
            dynamic_shapes=dynamic,
            dynamo=True,
            optimize=False,  # the optimizer needs data, and fake tensors have none
            verbose=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
        )
    return _with_checkpoint_names(program.model)


@contextmanager
def _in_users_words() -> Iterator[None]:
    try:
        yield
    except torch.onnx.OnnxExporterError as error:
        cause = error.__cause__ or error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise UserError(
            f"PyTorch cannot export the model: {type(cause).__name__}: "
            f"{' '.join(str(cause).split())!s:.200}",
            "this decoder computes something that has no form in ONNX",
        ) from None


def _with_checkpoint_names(model: ir.Model) -> ir.Model:
    """Remove the wrapper's prefix `model.` from each initializer's name."""
    for value in list(model.graph.initializers.values()):
        assert value.name is not None
        value.name = value.name.removeprefix(_MODEL_PREFIX)
    return model
