"""The requests of each client: the same for the server and for the runtime in this process."""

from dataclasses import dataclass

import numpy as np

Prompt = list[int]


@dataclass(frozen=True)
class Workload:
    """prompts: for each client those that it asks one after another. max_tokens: of each answer,
    whatever end-of-sequence tokens come.
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
        """Random tokens, so that no two prompts begin alike."""
        shape = clients, requests, prompt_tokens
        drawn = np.random.default_rng(seed).integers(0, vocab_size, shape)
        return cls(drawn.tolist(), max_tokens)
