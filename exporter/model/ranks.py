"""Cuts a model for tensor parallelism: every rank has a part of the heads, MLPs and vocabulary.

    heads         queries, keys and values by rows, the output by columns
    MLP, experts  each cut inside: gates and ups by rows, downs by columns
    vocabulary    the head by rows; the embedding by columns, so that a rank looks up every token
    every rank    norms, routers, and what makes latents (MLA), which all heads read; kv_b_proj too
                  where decode is parallel over the batch, under a name of its own

The traced model is one rank's: smaller weights, and markers where ranks have to meet. All ranks
have one trace: they differ only in their weights. Each layer has two sums over the ranks, of
attention's output and of its MLP or experts. The embedding's columns and the head's logits are
joined. Norms and routers see the sums, so all ranks compute them alike. Names modules as
transformers does, and no architecture.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.onnx import ops as onnx_ops

from snapexport.contract.exclusions import require_compatible
from snapexport.errors import UserError
from snapexport.exporter.model import Decoder
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.read.families import is_held
from snapexport.exporter.weights.adapted import Adapted, Merged
from snapexport.exporter.weights.arranged import InTurn, RowsOfHeads, Stack
from snapexport.exporter.weights.tensor_file import (
    BLOCK,
    Rearranged,
)
from snapexport.exporter.weights.tensor_file import Tensor as StoredTensor
from snapexport.files.safetensors import TensorSpan
from snapexport.graphs.markers import ALL_GATHER, ALL_REDUCE, TRACE_DOMAIN

_BY_ROWS = frozenset(
    ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "lm_head")
)
_BY_COLUMNS = frozenset(("o_proj", "down_proj", "embed_tokens"))
_OF_EXPERTS = {"gate_up_proj": 1, "gate_up": 1, "up_proj": 1, "up": 1, "down_proj": 2, "down": 2}
"""Stacks [E,2I,H] or [E,I,H], and [E,H,I], by transformers' names and by the trace's."""
_WHOLE = "whole"


def axis_of(name: str) -> int | None:
    """The axis along which a weight is cut; None: every rank has the whole."""
    *_, module, attribute = name.split(".")
    if module == "experts":
        return _OF_EXPERTS.get(attribute)
    if module in _BY_ROWS:
        return 0
    # A bias is added to what all ranks have summed up, so every rank has all of it.
    return 1 if module in _BY_COLUMNS and attribute == "weight" else None


def name_of_whole(name: str) -> str:
    """The name of a weight that a rank has whole beside its part."""
    stem, _, attribute = name.rpartition(".")
    return f"{stem}.{_WHOLE}.{attribute}"


def stored_name(name: str) -> str:
    """The name that the checkpoint has for a weight, whole or a part."""
    return name.replace(f".{_WHOLE}.", ".")


LARGEST = 1024


def require_ranks(checkpoint: Checkpoint, decoder: Decoder, ranks: int) -> None:
    """Raise UserError for a model that is not cut, or not for this number of ranks."""
    if ranks == 1:
        return
    require_compatible(
        {
            "tensor_parallel": ranks,
            "other_family": not is_held(decoder.family),
            "gguf": bool(checkpoint.gguf),
            "quantized": bool(checkpoint.config.get("quantization_config")),
            "attention_sinks": decoder.layers[0].sinks,
            "mlp_bias": getattr(decoder.config, "mlp_bias", False),
        }
    )
    for what, count in _counts(decoder):
        if count % ranks:
            numbers = ", ".join(map(str, possible(decoder)))
            raise UserError(
                f"--tensor-parallel {ranks}: the model's {count} {what} are not a multiple of it",
                f"possible here: {numbers}",
            )


def possible(decoder: Decoder) -> list[int]:
    """The numbers of ranks that a model can be cut for."""
    counts = [count for _, count in _counts(decoder)]
    return [n for n in range(1, LARGEST + 1) if not any(count % n for count in counts)]


def _counts(decoder: Decoder) -> Iterator[tuple[str, int]]:
    """All that is cut: each rank has an equal part."""
    config: Any = decoder.config
    yield "attention heads", decoder.layers[0].heads
    if not decoder.latent:
        yield "KV heads", decoder.layers[0].kv_heads
    if not all(layer.experts for layer in decoder.layers):
        yield "columns of the MLPs (intermediate_size)", config.intermediate_size
    if experts := decoder.experts:
        yield "columns of the experts (moe_intermediate_size)", experts.width
    yield "tokens of the vocabulary (vocab_size)", config.vocab_size
    yield "columns of the embedding (hidden_size)", config.hidden_size


Forward = Callable[..., Tensor]
_UP_PROJECTIONS = "kv_b_proj"


def cut_model(model: Any, ranks: int, *, every_head_attends: bool = False) -> None:
    """Change a model without weights. One rank: nothing changes.

    every_head_attends: of latents, in each rank, which so has the up-projections of all heads.
    """
    if ranks == 1:
        return
    for path, module in model.named_modules():
        if every_head_attends and path.endswith(f".{_UP_PROJECTIONS}"):
            continue
        for name, weight in list(module.named_parameters(recurse=False)):
            _cut(module, name, weight, axis_of(f"{path}.{name}"), ranks)
        if hasattr(module, "num_heads"):  # latent attention reads it; others divide by head_dim
            module.num_heads //= ranks
    for layer in model.model.layers:
        layer.self_attn.o_proj.forward = functools.partial(
            _reduce_product, layer.self_attn.o_proj, ranks
        )
        layer.mlp.forward = functools.partial(_reduce, layer.mlp.forward, ranks)
    for module in (model.model.embed_tokens, model.lm_head):
        module.forward = functools.partial(_gather, module.forward, ranks)


def rename_whole(traced: ir.Model) -> None:
    """Give up-projections of all heads a name of their own: prefill has a rank's part of them."""
    for name, value in list(traced.graph.initializers.items()):
        if f".{_UP_PROJECTIONS}." in name:
            value.name = name_of_whole(name)


def _cut(module: nn.Module, name: str, weight: Tensor, axis: int | None, ranks: int) -> None:
    if axis is not None:
        shape = [size // ranks if one == axis else size for one, size in enumerate(weight.shape)]
        setattr(module, name, nn.Parameter(weight.new_empty(shape), requires_grad=False))


def _reduce_product(module: Any, ranks: int, states: Tensor) -> Tensor:
    """A product whose bias is added once, to the sum of all ranks."""
    total = _mark(ALL_REDUCE, nn.functional.linear(states, module.weight), ranks)
    return total if module.bias is None else total + module.bias


def _reduce(forward: Forward, ranks: int, states: Tensor) -> Tensor:
    return _mark(ALL_REDUCE, forward(states), ranks)


def _gather(forward: Forward, ranks: int, inputs: Tensor) -> Tensor:
    part = forward(inputs)
    return _mark(ALL_GATHER, part, ranks, ranks * part.shape[-1])


def _mark(marker: str, states: Tensor, ranks: int, width: int | None = None) -> Tensor:
    return onnx_ops.symbolic(
        f"{TRACE_DOMAIN}::{marker}",
        (states,),
        {"ranks": ranks, "axis": len(states.shape) - 1},
        dtype=states.dtype,
        shape=(*states.shape[:-1], width or states.shape[-1]),
        version=1,
    )


@dataclass(frozen=True)
class Share:
    """The `rank`-th of `ranks` equal parts."""

    rank: int
    ranks: int


@dataclass(frozen=True)
class Columns(Rearranged):
    """A part of a tensor [n,...] along an axis that is not the first."""

    axis: int
    share: Share

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.stored.shape)
        shape[self.axis] //= self.share.ranks
        return tuple(shape)

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks of whole rows."""
        ranks, row = self.share.ranks, prod(self.stored.shape[self.axis :])
        assert row // ranks % multiple == 0, (self.shape, multiple)
        return self._arrange(
            row,
            most,
            lambda block: block.reshape(-1, ranks, row // ranks)[:, self.share.rank],
            ranks,
        )


def cut(tensor: StoredTensor, axis: int, share: Share) -> StoredTensor:
    """A rank's part of a tensor along an axis."""
    match tensor:
        case TensorSpan() if axis == 0:
            return _rows(tensor, share)
        case Stack() if axis > 0:
            return Stack(tuple(cut(part, axis - 1, share) for part in tensor.parts))
        case InTurn() if axis == 0:
            return InTurn(tuple(cut(part, 0, share) for part in tensor.parts))
        case RowsOfHeads() if axis == 0:
            heads = tensor.heads // share.ranks
            return replace(tensor, stored=cut(tensor.stored, 0, share), heads=heads)
        case Merged() if axis == 0:
            part = cut(tensor.stored, 0, share)
            return tensor.with_rows(share.rank * part.shape[0], part)
        case Adapted() if axis == 0:
            return cut(tensor.stored, 0, share)
    assert axis > 0, tensor
    return Columns(tensor, axis, share)


def _rows(span: TensorSpan, share: Share) -> TensorSpan:
    count, *row = span.shape
    nbytes = span.nbytes // share.ranks
    shape = (count // share.ranks, *row)
    return replace(span, offset=span.offset + share.rank * nbytes, nbytes=nbytes, shape=shape)


def of_rank(
    checkpoint: Checkpoint, sources: Mapping[str, str], rank: int, ranks: int
) -> Checkpoint:
    """A rank's checkpoint, by the names of the trace's weights.

    sources: {weight: tensor of the checkpoint}. Two weights may be cut of one tensor, each along
    its own axis: a head that is tied to the embedding.
    """
    share, tensors = Share(rank, ranks), dict[str, StoredTensor]()
    for name, source in sources.items():
        axis, whole = axis_of(name), checkpoint.tensors[source]
        tensors[name] = whole if axis is None else cut(whole, axis, share)
    return replace(checkpoint, tensors=tensors)
