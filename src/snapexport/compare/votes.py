"""Compares the positions that graphs keep of a prompt with a vote in float64.

The queries and keys that vote are those of transformers' own attention. Knows the vote by a window
of queries, and no other kind.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from snapexport.compare.difference import HINT
from snapexport.compare.reference import Attended
from snapexport.contract import vote as contract
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.slots import LayerGeometry
from snapexport.errors import UserError
from snapexport.plugins.reference import Vote, wrong_choice

_TIE = 1e-3
"""Votes that differ less, as a share of the last kept one, may be ranked either way."""

Kept = Sequence[NDArray[np.int64]]
"""Positions that each layer keeps, [Hkv,K] ascending, -1 where unused."""

_COMBINED = {"mean": torch.mean, "sum": torch.sum, "max": torch.amax}


def window_scores(vote: contract.Vote, attended: Attended, span: range) -> Tensor:
    """Scores that rank the eligible positions `span`, float64 [Hkv,n].

    attended: the queries of the window, and the keys of the prompt.
    """
    options = Vote(vote.pool_kernel, attended.scaling, attended.softcap, **vote.options)
    return options.scores(attended.query, attended.key, span)


def require_same_vote(
    kept: Kept,
    attended: Sequence[Attended],
    geometry: CacheGeometry,
    prompt: int,
    depth: Sequence[int],
) -> None:
    """Raise UserError for the first layer that keeps other positions of a prompt.

    attended: by the layers' forward of at least the prompt. depth: the layers' indices.
    """
    for place, (positions, one) in enumerate(zip(kept, attended, strict=True)):
        layer = geometry.layers[place]
        if not layer.K:
            continue
        span = range(layer.L_sink, layer.L_sink + layer.eligible(prompt))
        window = one.of_tokens(prompt - geometry.vote.L_obs, prompt)
        scores = window_scores(geometry.vote, window, span)
        if len(scores) != len(positions):
            # Latent attention has a key for each query head, and one set of positions for all.
            combine: Any = _COMBINED[geometry.vote.group]
            scores = combine(scores, dim=0, keepdim=True)
        if wrong := wrong_choice(scores, torch.from_numpy(positions), span, _TIE):
            raise UserError(
                f"layer {depth[place]} keeps other positions than its vote: {wrong}", HINT
            )


def visible_after(
    layer: LayerGeometry, kept: NDArray[np.int64], prompt: int, position: int
) -> Tensor:
    """The tokens that a token at `position` sees after a compressed prompt, bool [Hkv,prompt+1].

    It overwrites a slot of the ring, and it is the last one of the columns.
    """
    held = np.zeros((len(kept), prompt + 1), bool)
    for row, voted in zip(held, kept.tolist(), strict=True):
        slots = layer.source_positions(prompt, voted)
        slots[layer.cache_slot(position, prompt)] = prompt
        row[[found for found in slots if found >= 0]] = True
    return torch.from_numpy(held)
