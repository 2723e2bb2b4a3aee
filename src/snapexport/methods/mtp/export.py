"""Makes the checkpoint's layer for multi-token prediction (MTP), and traces it.

DeepSeek-V3 (arXiv 2412.19437, section 2.2) has it after the last layer. Of the model's hidden
states at position p and the token at p + 1 it predicts the token at p + 2. The hidden states are
those that the head reads, after the final norm, as transformers has it. The layer returns its own
in the same way, so that a step can follow a step.

A checkpoint with N layers has it as `model.layers.N.*`: a decoder layer, two norms (enorm and
hnorm), a projection (eh_proj) and the head's norm (shared_head.norm). Copies of the embedding and
of the head may be there too: the layer shares the model's. Knows no cache policy and no target.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from snapexport.contract import names
from snapexport.errors import UserError
from snapexport.exporter.method import MethodExport, TracedModel
from snapexport.exporter.model import Decoder
from snapexport.exporter.model.models import model_on_meta
from snapexport.exporter.model.skeleton import skeleton
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.trace import SLOT_AXES, SLOTS, Step, export
from snapexport.exporter.weights.shapes import is_same, require_parameters
from snapexport.methods.mtp.spec import GRAPH, NEXT_HIDDEN_STATES, PREFILL_GRAPH

_LEAVE_OUT = "leave out --mtp"
_COPIES = "embed_tokens.weight", "shared_head.head.weight"
"""What the layer shares with the model, and a checkpoint may have once more."""


def _decoder_of_layer(decoder: Decoder) -> Decoder:
    """The decoder of the model's last layer only, which `_put_layer` replaces by one like it."""
    return decoder.left_with([len(decoder.layers) - 1])


def _put_layer(model: Any, index: int) -> None:
    """Put the layer in the place of a model's layers, under the checkpoint's names."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(model.dtype)
    try:
        layer = _layer(model, index)
    finally:
        torch.set_default_dtype(usual)
    model.model.layers = nn.ModuleDict({str(index): layer.eval()})


def _layer(model: Any, index: int) -> Any:
    config, norm = model.config, type(model.model.norm)
    width, epsilon = config.hidden_size, config.rms_norm_eps
    layer: Any = type(model.model.layers[0])(config, index)
    layer.enorm, layer.hnorm = norm(width, epsilon), norm(width, epsilon)
    layer.eh_proj = nn.Linear(2 * width, width, bias=False)
    layer.shared_head = nn.ModuleDict({"norm": norm(width, epsilon)})
    return layer


def _require_layer(checkpoint: Checkpoint, decoder: Decoder) -> None:
    """Raise UserError for a checkpoint without such a layer, or one that is not as it should be."""
    _require_present(checkpoint, decoder)
    stem = _stem(decoder)
    model = model_on_meta(_decoder_of_layer(decoder))
    _put_layer(model, len(decoder.layers))
    shapes = {name: tuple(one.shape) for name, one in model.state_dict().items()}
    require_parameters(
        checkpoint, {name: shape for name, shape in shapes.items() if name.startswith(stem)}
    )
    _require_shared(checkpoint, decoder, stem)


def _require_present(checkpoint: Checkpoint, decoder: Decoder) -> None:
    """Raise UserError for a checkpoint without such a layer, by its headers only."""
    stem = _stem(decoder)
    count = getattr(decoder.config, "num_mtp_layers", 0) or 0
    if not decoder.family.mtp:
        raise UserError(
            f"--mtp is not supported with the architecture {decoder.family.name}: its "
            "checkpoints have no layer for multi-token prediction",
            _LEAVE_OUT,
        )
    if count < 1 or f"{stem}eh_proj.weight" not in checkpoint.tensors:
        raise UserError(
            f"--mtp needs a layer for multi-token prediction, and the checkpoint has no {stem}*",
            f"{_LEAVE_OUT}, or use the original checkpoint: some copies are without the layer",
        )
    if count > 1:
        raise UserError(
            f"--mtp is for one layer of multi-token prediction, and config.json has {count}",
            _LEAVE_OUT,
        )


def _tensors(checkpoint: Checkpoint, decoder: Decoder) -> set[str]:
    """The layer's tensors, without copies of the model's."""
    stem = _stem(decoder)
    copies = {stem + name for name in _COPIES}
    return {name for name in checkpoint.tensors if name.startswith(stem)} - copies


def _stem(decoder: Decoder) -> str:
    """The beginning of the names of the layer's tensors."""
    return f"{decoder.names.layers}.{len(decoder.layers)}."


def _require_shared(checkpoint: Checkpoint, decoder: Decoder, stem: str) -> None:
    """Copies of the embedding and of the head are the model's."""
    head = decoder.embedding if decoder.tied else decoder.head
    for name, original in zip(_COPIES, (decoder.embedding, head), strict=True):
        stored = stem + name in checkpoint.tensors
        if stored and not is_same(checkpoint, stem + name, original):
            raise UserError(
                f"--mtp shares {original} with the model, and {stem}{name} has other values",
                _LEAVE_OUT,
            )


class _Step(Step):
    """One token for each of B sequences.

    input_ids, position_ids [B,1], the position before's hidden_states [B,1,E] -> logits float32
    [B,V], hidden_states [B,1,E].
    """

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, hidden_states: Tensor
    ) -> tuple[Tensor, Tensor]:
        states = _run(self.model, input_ids, position_ids, hidden_states)
        return self.logits(states), states


class _Chunk(Step):
    """The tokens after those of a prefill chunk: surgery keeps only the cached states.

    input_ids [1,C], past_length [1], the chunk's hidden_states [1,C,E] -> hidden_states [1,C,E].
    """

    def forward(self, input_ids: Tensor, past_length: Tensor, hidden_states: Tensor) -> Tensor:
        position_ids = past_length[:, None] + torch.arange(1, input_ids.shape[1] + 1)[None]
        return _run(self.model, input_ids, position_ids, hidden_states)


def _run(model: Any, input_ids: Tensor, position_ids: Tensor, hidden_states: Tensor) -> Tensor:
    (layer,) = model.model.layers.values()
    embedded = model.model.embed_tokens(input_ids)
    both = torch.cat((layer.enorm(embedded), layer.hnorm(hidden_states)), dim=-1)
    rope = model.model.rotary_emb(embedded, position_ids=position_ids)
    states = layer(layer.eh_proj(both), position_embeddings=rope, position_ids=position_ids)
    normed: Tensor = layer.shared_head.norm(states)
    return normed


def trace_mtp(decoder: Decoder, dtype: torch.dtype) -> ir.Model:
    """Trace one step for each batch slot. Their number is a dimension: `with_batch`."""
    return _trace(decoder, dtype, None)


def trace_mtp_prefill(decoder: Decoder, dtype: torch.dtype, chunk: int) -> ir.Model:
    """Trace the tokens after those of a prefill chunk."""
    return _trace(decoder, dtype, chunk)


def _trace(decoder: Decoder, dtype: torch.dtype, chunk: int | None) -> ir.Model:
    """chunk: None for a step of each batch slot."""
    alone, put = _decoder_of_layer(decoder), partial(_put_layer, index=len(decoder.layers))
    with skeleton(alone, dtype, put) as (model, fake), torch.no_grad(), fake:
        rows, tokens = (1, chunk) if chunk else (SLOTS, 1)
        ids = torch.empty(rows, tokens, dtype=torch.int64)
        states = torch.empty(rows, tokens, decoder.config.hidden_size, dtype=dtype)
        position = names.PAST_LENGTH if chunk else names.POSITION_IDS
        positions = torch.empty((1,) if chunk else (rows, 1), dtype=torch.int64)
        inputs = {names.INPUT_IDS: ids, position: positions, names.HIDDEN_STATES: states}
        step = (_Chunk if chunk else _Step)(model, alone, True).eval()
        outputs = [NEXT_HIDDEN_STATES]
        outputs = outputs if chunk else [names.LOGITS, *outputs]
        return export(step, inputs, outputs, None if chunk else dict.fromkeys(inputs, SLOT_AXES))


class MtpExport(MethodExport):
    """Two traces more, of a layer that comes after the model's last."""

    title = "multi-token prediction"

    def require(self, checkpoint: Checkpoint, decoder: Decoder) -> None:
        _require_layer(checkpoint, decoder)

    def tensors(self, checkpoint: Checkpoint, decoder: Decoder) -> Collection[str]:
        _require_present(checkpoint, decoder)
        return _tensors(checkpoint, decoder)

    def traces(self, model: TracedModel) -> Mapping[str, ir.Model]:
        return {
            GRAPH: trace_mtp(model.decoder, model.dtype),
            PREFILL_GRAPH: trace_mtp_prefill(model.decoder, model.dtype, model.chunk),
        }


EXPORT = MtpExport()
