"""Traces the layer of a checkpoint for multi-token prediction (MTP), which drafts a further token.

DeepSeek-V3 (arXiv 2412.19437, section 2.2) has it after the last layer. Of the model's hidden
states at position p and the token at p + 1 it predicts the token at p + 2. The hidden states are
those that the head reads, after the final norm, as transformers has it. The layer returns its own
in the same way, so that a step can follow a step. Knows no cache policy and no target.
"""

from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from snapexport.contract import names
from snapexport.exporter.model import Decoder
from snapexport.exporter.model.skeleton import skeleton
from snapexport.exporter.trace import SLOT_AXES, SLOTS, Step, export
from snapexport.methods.mtp.layer import decoder_of_layer, put_layer
from snapexport.methods.mtp.spec import NEXT_HIDDEN_STATES


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
    """The tokens after those of a prefill chunk: surgery keeps the cached states alone.

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
    alone, put = decoder_of_layer(decoder), partial(put_layer, index=len(decoder.layers))
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
