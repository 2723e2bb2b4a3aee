"""Computes logits by the head that a model has, with whatever it does to them.

The class's own forward runs on given hidden states: so a factor, a soft cap or a bias of logits is
right by construction.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast

from snapexport.errors import UserError
from snapexport.exporter.architectures import Decoder
from snapexport.exporter.models import causal_language_model

_BARRED = "snapexport_barred"


class _States(BaseModelOutputWithPast):
    """What a decoder returns. Some heads look for more, and find nothing."""

    def __getattr__(self, _: str) -> None:
        return None


def logits_of(model: Any, decoder: Decoder, hidden_states: Tensor) -> Tensor:
    """Hidden states [B,C,E] -> logits float32 [B,C,V], or [B,V] for one token each.

    Those of tokens that are never sampled are the least that float32 holds.
    """
    with_head = causal_language_model(model)
    inside = with_head.get_submodule("model" if decoder.whole else decoder.names.decoder)
    usual, calls = inside.forward, 0

    def states(*_: Any, **__: Any) -> _States:
        nonlocal calls
        calls += 1
        return _States(last_hidden_state=hidden_states)

    inside.forward = states
    try:
        token = torch.zeros(1, 1, dtype=torch.int64)  # no forward after the decoder reads it
        logits: Tensor = with_head(input_ids=token, use_cache=False).logits
    finally:
        inside.forward = usual
    if calls != 1:
        raise UserError(
            "the model's head computes logits of something else than its decoder's states",
            "only a head that follows the decoder can be built",
        )
    logits = (logits[:, 0] if hidden_states.shape[1] == 1 else logits).float()
    return logits + getattr(model, _BARRED) if decoder.never_sampled else logits


def bar_tokens(model: Any, decoder: Decoder) -> None:
    """Give a model what `logits_of` adds to the logits of tokens that are never sampled."""
    if decoder.never_sampled:
        added = torch.zeros(decoder.config.vocab_size)
        added[list(decoder.never_sampled)] = torch.finfo(torch.float32).min
        model.register_buffer(_BARRED, added, persistent=False)
