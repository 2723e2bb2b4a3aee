"""The requests of each client: the same for the server and for the runtime in this process."""

from dataclasses import dataclass

import numpy as np

Prompt = list[int]


@dataclass(frozen=True)
class Workload:
    """prompts: each client's prompts, in order. max_tokens: length of each answer; end-of-sequence
    tokens are ignored.
    """

    prompts: list[list[Prompt]]
    max_tokens: int

    @classmethod
    def drawn(
        cls,
        seed: list[int],
        clients: int,
        requests: int,
        prompt_tokens: int,
        max_tokens: int,
        vocab_size: int,
    ) -> "Workload":
        """Random prompts, so that no two have a common prefix."""
        shape = clients, requests, prompt_tokens
        drawn = np.random.default_rng(seed).integers(0, vocab_size, shape)
        return cls(drawn.tolist(), max_tokens)
