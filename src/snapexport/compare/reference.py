"""Runs transformers' own model, the reference of every comparison, and watches what it does.

The arithmetic stays transformers' own. Its eager attention is called with a mask that hides more,
through its interface, as some models have code beside it for eager attention by that name (GPT-2);
its routers are watched, and may get slightly other embeddings. Knows no graph and no weights.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from snapexport.exporter.quiet import quiet

IMPLEMENTATION = "snapexport_reference"
_EAGER = "eager_attention_forward"
_DRAWS = 2
"""Draws of noise, to find what rounding could change."""
_NOISE = 3e-5
"""Several times the effect of fp32 rounding on hidden states, relative to them."""


def _eager(module: Any, *states: Any, **named: Any) -> Any:
    return getattr(sys.modules[type(module).__module__], _EAGER)(module, *states, **named)


AttentionInterface.register(IMPLEMENTATION, _eager)
AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)

Visible = Callable[[int], Tensor]
"""The keys that a layer's last query sees, by the layer's place: bool [KV heads or 1, keys]."""


@dataclass(frozen=True)
class Attended:
    """One call of attention. query [H,T,D] and key [Hkv,T,D]: after RoPE. softcap: 0: none."""

    query: Tensor
    key: Tensor
    scaling: float
    softcap: float

    def of_tokens(self, start: int, end: int) -> "Attended":
        """Left with the queries of the tokens [start, end), and the keys before `end`."""
        return replace(self, query=self.query[:, start:end], key=self.key[:, :end])


@dataclass(frozen=True)
class Answer:
    """logits float32 [T,V] after each token. attended: what each layer's attention got."""

    logits: NDArray[np.float32]
    attended: Sequence[Attended]


class Reference:
    """A model of transformers that makes logits of tokens."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.no_grad()
    def answer(
        self,
        tokens: Sequence[int],
        last_position: int | None = None,
        visible: Visible | None = None,
    ) -> Answer:
        """One forward of all tokens, without a cache; the model's attention has to be eager.

        last_position: of the last token; None: the one after the others. visible: the keys that it
        sees; None: all.
        """
        positions = torch.arange(len(tokens))[None]
        if last_position is not None:
            positions[0, -1] = last_position
        with _watching(self._model, visible) as attended, quiet():
            out = self._model(
                input_ids=torch.tensor([list(tokens)]), position_ids=positions, use_cache=False
            )
        return Answer(out.logits[0].float().numpy(), attended)

    @torch.no_grad()
    def continuation(
        self, prompt: Sequence[int], count: int, never_sampled: Sequence[int]
    ) -> tuple[list[int], NDArray[np.float32]]:
        """The model's own greedy continuation, end-of-sequence tokens included.

        With its dynamic cache. Returns the tokens, and the logits [1+count,V] after the prompt and
        after each of them: -inf for the tokens that are never sampled, but after the last one.
        """
        chosen: list[int] = []
        out = self._model(torch.tensor([list(prompt)]), logits_to_keep=1)
        rows = [out.logits[0, -1]]
        while len(chosen) < count:
            rows[-1][list(never_sampled)] = -torch.inf
            chosen.append(int(rows[-1].argmax()))
            out = self._model(torch.tensor([chosen[-1:]]), past_key_values=out.past_key_values)
            rows.append(out.logits[0, -1])
        return chosen, torch.stack(rows).float().numpy()

    @torch.no_grad()
    def unclear(self, tokens: Sequence[int]) -> int | None:
        """The first token for which rounding could choose other experts, if there is one.

        Such a token has two experts of nearly equal scores, of which either is right. Forwards that
        begin with slightly other embeddings show it.
        """
        found = []
        for seed in (None, *range(_DRAWS)):
            with _choices_of(self._model, seed) as choices, quiet():
                self._model(input_ids=torch.tensor([list(tokens)]), use_cache=False)
            found.append(choices)
        unlike = [
            int(row)
            for other in found[1:]
            for one, two in zip(found[0], other, strict=True)
            for row in (one != two).any(-1).nonzero()[:1, 0]
        ]
        return min(unlike, default=None)


@contextmanager
def _watching(model: Any, visible: Visible | None) -> Iterator[list[Attended]]:
    """Watch what the layers of a model attend in this block, in order."""
    attended: list[Attended] = []
    modules = {sys.modules[type(module).__module__] for module in model.modules()}
    usual = {one: getattr(one, _EAGER) for one in modules if hasattr(one, _EAGER)}

    def watched(eager: Callable[..., Any]) -> Callable[..., Any]:
        def attend(
            module: Any,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Tensor | None,  # some models pass it by its name
            *rest: Any,
            **named: Any,
        ) -> Any:
            scaling = named.get("scaling", rest[0] if rest else None)
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            if visible is not None:
                assert attention_mask is not None
                shown = visible(len(attended))
                attention_mask = _hiding(attention_mask, shown, query.shape[1])
            softcap = float(named.get("softcap") or 0.0)
            attended.append(Attended(query[0], key[0], float(scale), softcap))
            return eager(module, query, key, value, attention_mask, *rest, **named)

        return attend

    for one, eager in usual.items():
        setattr(one, _EAGER, watched(eager))
    try:
        yield attended
    finally:
        for one, eager in usual.items():
            setattr(one, _EAGER, eager)


def _hiding(mask: Tensor, visible: Tensor, heads: int) -> Tensor:
    """A mask [1,H,T,N] whose last row shows only the visible keys."""
    rows = mask.expand(-1, heads, -1, -1).clone()
    of_heads = visible.repeat_interleave(heads // len(visible), dim=0)
    rows[0, :, -1] = torch.where(of_heads, 0.0, torch.finfo(mask.dtype).min)
    return rows


@contextmanager
def _choices_of(model: Any, seed: int | None) -> Iterator[list[Tensor]]:
    """The experts of each token [T,k], ascending, by each call of a module of experts in a block.

    seed: of the noise on the embeddings; None: none.
    """
    chosen: list[Tensor] = []

    def note(_: Any, given: tuple[Any, ...]) -> None:  # hidden states, experts, their weights
        if len(given) > 1 and isinstance(given[1], Tensor):
            chosen.append(given[1].sort(-1).values)

    def noisy(_: Any, __: Any, embedded: Tensor) -> Tensor:
        return embedded * (1 + _NOISE * torch.randn(embedded.shape, generator=generator))

    experts = [one for one in model.modules() if type(one).__name__.endswith("Experts")]
    handles = [one.register_forward_pre_hook(note) for one in experts]
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        handles.append(model.get_input_embeddings().register_forward_hook(noisy))
    try:
        yield chosen
    finally:
        for handle in handles:
            handle.remove()
