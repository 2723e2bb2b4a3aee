"""Computes what a build keeps if pseudo tokens vote: transformers' model, fed with them in full.

The tokens stand behind the prompt in transformers' own full cache, which then forgets them. Knows
no graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from snapexport.contract.geometry import CacheGeometry

from . import masked
from .masked import Memory, Scoring
from .vote import gap, keep, vote


@dataclass(frozen=True)
class PseudoRun:
    """topk_positions, vote_gaps: as in OracleRun. tokens [steps + 1], logits [steps + 1, V]: those
    of the prompt's end, then of decode; tokens[i] is the argmax of logits[i]."""

    topk_positions: list[NDArray[np.int64]]
    vote_gaps: list[NDArray[np.float64]]
    tokens: list[int]
    logits: NDArray[np.float32]

    @property
    def is_clear(self) -> bool:
        """Whether rounding changes no vote (a tie is no doubt)."""
        gaps = np.concatenate([[1.0], *self.vote_gaps])
        return bool(np.all((gaps == 0) | (gaps > masked.CLEAR_VOTE)))


@dataclass
class VotedBehind(Memory):
    """Pseudo tokens vote on the prompt before them. pseudo_tokens: fed now; 0: none are."""

    pseudo_tokens: int = 0

    def visible(self, layer: int, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        total = key.shape[1]
        if self.pseudo_tokens:
            shape, before = self.geometry.layers[layer], key[:, : self.prompt_length]
            scores = vote(query, before, shape, self.geometry, *scoring)
            self.kept[layer], self.gaps[layer] = keep(scores, shape), gap(scores, shape.K)
        if self.pseudo_tokens or total == self.prompt_length:
            return masked.causal(query.shape[1], total)[None]
        return self.visible_in_decode(layer, total - 1)[:, None]


@torch.no_grad()
def run(
    model_dir: Path,
    prompt: Sequence[int],
    pseudo_tokens: Sequence[int],
    geometry: CacheGeometry,
    steps: int,
) -> PseudoRun:
    """Prefill `prompt`, let `pseudo_tokens` vote and forget them, then decode `steps` tokens."""
    model = masked.load(model_dir, masked.MASKED)
    memory, past = VotedBehind(geometry, len(prompt)), DynamicCache()

    def fed(ids: Sequence[int]) -> NDArray[np.float32]:
        given = {"past_key_values": past, "use_cache": True, "logits_to_keep": 1}
        logits = model(torch.tensor([list(ids)]), memory=memory, **given).logits
        found: NDArray[np.float32] = logits[0, -1].numpy()
        return found

    logits = [fed(prompt)]
    memory.pseudo_tokens = len(pseudo_tokens)
    fed(pseudo_tokens)
    memory.pseudo_tokens = 0
    past.crop(-len(pseudo_tokens))
    for _ in range(steps):
        logits.append(fed([int(logits[-1].argmax())]))
    layers = range(geometry.num_layers)
    return PseudoRun(
        [memory.kept[layer].numpy() for layer in layers],
        [memory.gaps[layer].numpy() for layer in layers],
        [int(one.argmax()) for one in logits],
        np.stack(logits),
    )
