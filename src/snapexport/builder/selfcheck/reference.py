"""Runs transformers' own model of a sample: its loading, its eager attention and its head, in fp32.

Shares with our graphs neither the conversion of weights nor any arithmetic.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from snapexport.builder.selfcheck.attention import Attended, Visible, watching
from snapexport.builder.selfcheck.routing import choices_of
from snapexport.builder.selfcheck.sample import Sample
from snapexport.builder.selfcheck.stand_in import drop_quantization
from snapexport.errors import UserError
from snapexport.exporter.model import Decoder
from snapexport.exporter.model.models import (
    causal_language_model,
    in_users_words,
    keep_layers,
    leave_text,
    make_model,
    path_of_decoder,
    with_text_alone,
)
from snapexport.exporter.quiet import quiet, without_progress_bars

_DRAWS = 2
"""Of noise, to find what rounding could change."""


@dataclass(frozen=True)
class Answer:
    """logits float32 [T,V] after each token. attended: what each layer's attention got."""

    logits: NDArray[np.float32]
    attended: Sequence[Attended]


class Reference:
    """transformers' model of a sample, with its weights in memory."""

    def __init__(self, sample: Sample) -> None:
        self._model = _of_text(causal_language_model(_loaded(sample)), sample.decoder)

    @torch.no_grad()
    def answer(
        self,
        tokens: Sequence[int],
        last_position: int | None = None,
        visible: Visible | None = None,
    ) -> Answer:
        """One forward of all tokens, without a cache.

        last_position: of the last token; None: the one after the others. visible: the keys that it
        sees; None: all.
        """
        positions = torch.arange(len(tokens))[None]
        if last_position is not None:
            positions[0, -1] = last_position
        with watching(self._model, visible) as watch, quiet():
            out = self._model(
                input_ids=torch.tensor([list(tokens)]), position_ids=positions, use_cache=False
            )
        return Answer(out.logits[0].float().numpy(), watch.attended)

    @torch.no_grad()
    def unclear(self, tokens: Sequence[int]) -> int | None:
        """The first token for which rounding could choose other experts, if there is one."""
        found = []
        for seed in (None, *range(_DRAWS)):
            with choices_of(self._model, seed=seed) as choices, quiet():
                self._model(input_ids=torch.tensor([list(tokens)]), use_cache=False)
            found.append(choices)
        others = (found[0].first_other(other) for other in found[1:])
        return min((place for place in others if place is not None), default=None)


@torch.no_grad()
def _of_text(model: Any, decoder: Decoder) -> Any:
    """The model, or the class of its text around its parts, where it asks others for each token."""
    try:
        with quiet():
            model(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=False)
    except AttributeError:  # of a part that was left out
        with torch.device("meta"):
            text = make_model(decoder.config)
        text.set_submodule(path_of_decoder(text), model.get_submodule(decoder.names.decoder))
        text.set_output_embeddings(model.get_submodule(decoder.names.head))
        return text.eval()
    return model


def _loaded(sample: Sample) -> Any:
    """The model, by `from_pretrained` of its class, left with the sample's layers."""
    decoder, names = sample.decoder, sample.decoder.names
    with in_users_words(), torch.device("meta"):
        made = make_model(decoder.config, decoder.whole)
    usual, config = type(made), deepcopy(made.config)
    drop_quantization(config)

    def init(self: Any, config: Any) -> None:
        with_text_alone(decoder.config, lambda: usual.__init__(self, config))
        if decoder.whole:
            leave_text(self)
        keep_layers(self, names.decoder, names.layers, decoder.depth)

    few: Any = type(usual.__name__, (usual,), {"__init__": init, "__module__": usual.__module__})
    with quiet(), without_progress_bars():
        model, report = few.from_pretrained(
            None,
            config=config,
            state_dict=sample.state_dict(),
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    for what in ("missing_keys", "mismatched_keys"):
        if report[what]:
            raise UserError(
                f"transformers loads the checkpoint in another way: {what.replace('_', ' ')} "
                f"{sorted(map(str, report[what]))[:3]}",
                "this checkpoint cannot be built",
            )
    return model
