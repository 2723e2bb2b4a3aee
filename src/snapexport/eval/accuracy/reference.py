"""The reference: a transformers model with its own dynamic cache."""

from typing import Any

import torch

from snapexport.eval.accuracy.sequence import Array, SequenceRunner


class ReferenceRunner(SequenceRunner):
    """Says how a prompt goes on, and knows the logits of what it has said."""

    original = True

    def __init__(self, model: Any) -> None:
        super().__init__(name="transformers")
        self.model = model
        self._logits: dict[tuple[int, ...], Array] = {}

    def activate_impl(self) -> None:
        """Nothing: the model is loaded already."""

    @torch.no_grad()
    def continuation(self, prompt: list[int], tokens: int) -> list[int]:
        """The model's own greedy continuation, end-of-sequence tokens included."""
        chosen: list[int] = []
        out = self.model(torch.tensor([prompt]), logits_to_keep=1)
        rows = [out.logits[0, -1]]
        while len(chosen) < tokens:
            chosen.append(int(rows[-1].argmax()))
            out = self.model(torch.tensor([chosen[-1:]]), past_key_values=out.past_key_values)
            rows.append(out.logits[0, -1])
        # The sequence that is compared is this one: the model need not run it again.
        self._logits[*prompt, *chosen] = torch.stack(rows).float().numpy()
        return chosen

    def logits(self, token_ids: Array, prompt_length: int) -> Array:
        """The logits [1 + N, V] that came up while the continuation was made."""
        logits = self._logits[tuple(token_ids.tolist())]
        assert len(logits) == 1 + len(token_ids) - prompt_length
        return logits
