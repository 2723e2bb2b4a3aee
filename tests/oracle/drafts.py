"""Computes the expected drafts of multi-token prediction, by transformers' own layer for it.

transformers loads the layer itself, of the checkpoint's tensors. It attends to all positions; an
exact sliding window is the layer on the window's tokens alone, since the rows of its cache do not
depend on each other. Knows no graph.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import unwrap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from snapexport.contract.geometry import CacheGeometry

from . import masked
from .masked import MASKED, OracleRun
from .on_disk import kept
from .routing import watched

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Drafts:
    """What follows each token but the first of a run, of L + steps tokens.

    run: the model's own. hidden_states [L + steps,E]: after the final norm. logits
    [L + steps - 1,V]: row p of hidden state p and token p + 1. next_hidden_states: as logits.
    """

    run: OracleRun
    hidden_states: Floats
    logits: Floats
    next_hidden_states: Floats
    clear_routing: bool

    @property
    def is_clear(self) -> bool:
        """Whether rounding changes no token, no vote and no expert, also of the drafts."""
        is_clear_token = masked.greedy_gap(self.logits) > masked.CLEAR_TOKEN
        return self.run.is_clear and self.clear_routing and is_clear_token


@kept
def drafts(
    model_dir: Path, prompt: Sequence[int], geometry: CacheGeometry, steps: int, ring: int
) -> Drafts:
    """Decode greedily as `masked.run` does, and draft after each token. ring: the window."""
    with hidden_states(masked.load(model_dir, MASKED)) as states:
        run = unwrap(masked.run)(model_dir, prompt, geometry, steps)
    hidden = torch.cat(states, dim=1)
    tokens = torch.tensor([[*prompt, *run.tokens[:-1]]])
    layer = mtp(model_dir)
    with watched(layer) as routing, torch.no_grad():
        rows = [
            one_draft(layer, tokens, hidden, position, ring)
            for position in range(1, tokens.shape[1])
        ]
        logits = [layer._project_to_logits(row)[0] for row in rows]
    return Drafts(
        run,
        hidden[0].numpy(),
        torch.stack(logits).numpy(),
        torch.cat(rows).numpy(),
        routing.clear,
    )


def one_draft(layer: Any, tokens: Tensor, hidden: Tensor, position: int, ring: int) -> Tensor:
    """The layer's hidden states [1,E] at the token of `position`, of the last `ring` tokens."""
    first = max(1, position + 1 - ring)
    states: Tensor = layer.forward_layer(
        0,
        hidden[:, first - 1 : position],
        torch.arange(first, position + 1)[None],
        MtpCache(config=layer.config),
        input_ids=tokens[:, first : position + 1],
    )
    return states[:, -1]


@cache
def mtp(model_dir: Path) -> Any:
    """transformers' layer, loaded by transformers."""
    return MtpModel.from_pretrained(_knowing_its_layer(masked.load(model_dir, "eager"))).eval()


def _knowing_its_layer(model: Any) -> Any:
    """transformers looks for the layer's tensors by the number that DeepSeek-V3 has, 61."""
    number = model.config.num_hidden_layers
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{number}.*"]
    return model


@contextmanager
def hidden_states(model: Any) -> Iterator[list[Tensor]]:
    """Collect what a model's final norm returns, [1,n,E] each."""
    found: list[Tensor] = []
    handle = model.model.norm.register_forward_hook(lambda *call: found.append(call[2].detach()))
    try:
        yield found
    finally:
        handle.remove()


@dataclass(frozen=True)
class Drafted:
    """One call of the layer by transformers' `generate`. position: of its last token."""

    position: int
    token: int
    logits: Floats


def generated(
    model_dir: Path, prompt: Sequence[int], steps: int
) -> tuple[list[int], list[Drafted]]:
    """transformers' greedy decoding with the layer's drafts: the new tokens, and each draft."""
    model, calls = _knowing_its_layer(masked.load(model_dir, "eager")), list[Drafted]()
    forward = MtpModel.forward

    def recording(self: Any, *args: Any, **kwargs: Any) -> Any:
        tokens, logits, loss = forward(self, *args, **kwargs)
        position = int(kwargs["position_ids"][0, -1])
        calls.append(Drafted(position, int(tokens[0, 0]), logits[0, 0].float().numpy()))
        return tokens, logits, loss

    MtpModel.forward = recording
    try:
        ids = torch.tensor([list(prompt)])
        out = model.generate(
            ids, use_mtp=True, do_sample=False, max_new_tokens=steps, eos_token_id=None
        )
    finally:
        MtpModel.forward = forward
    return out[0, len(prompt) :].tolist(), calls
