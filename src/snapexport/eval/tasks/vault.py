"""`vault`: the register of the bundled checkpoint (snapexport.vault), for any tokenizer.

`make_prompt` counts in tokens of the vault's tokenizer, where a length is met exactly. For others
the longest register that fits is looked for. A depth is a place in the order of the entries, so
the nearest one there is; the sample tells where that stands.
"""

from collections.abc import Iterator
from random import Random

from tokenizers import Tokenizer

from snapexport.contract.errors import UserError
from snapexport.eval.tasks.fitting import most
from snapexport.eval.tasks.sample import Sample
from snapexport.eval.tasks.task import require_depth, too_short
from snapexport.eval.tasks.writing import Text, prompt_tokens, require_spells, written
from snapexport.vault.prompts import (
    FIRST_TRAINING_SEED,
    HEADER,
    VaultPrompt,
    make_prompt,
    make_register,
    question,
)

# From here on, prose of any length can be made around a prompt's entries.
SHORTEST = 38
NOISE_TOKENS = 2048


class Vault:
    """Find the four words of a register's entry."""

    name = "vault"

    def sample(
        self,
        tokenizer: Tokenizer,
        seed: int,
        tokens: int,
        depth: float | None = None,
        answer_tokens: int = 0,
    ) -> Sample:
        require_depth(depth)
        _require_unseen(seed)
        require_spells(tokenizer, self)

        def prompt(more: int) -> VaultPrompt:
            return make_prompt(seed, SHORTEST + more, depth=depth)

        least = prompt_tokens(tokenizer, _text(prompt(0)))
        if least > tokens:
            raise too_short(self.name, tokens, least)
        found = prompt(
            most(
                lambda more: prompt_tokens(tokenizer, _text(prompt(more))),
                limit=tokens,
                guess=tokens - SHORTEST,
            )
        )
        return written(tokenizer, self.name, _text(found), f"{found.key}:{found.answer}\n")

    def noise(self, seed: int) -> Iterator[str]:
        rng = Random(f"{self.name} {seed}")
        while True:
            register = make_register(rng, NOISE_TOKENS, entries=1)
            lines = register.text.removeprefix(HEADER).splitlines(keepends=True)
            yield from (line for line in lines if ":" not in line)

    def excerpt(self) -> str:
        prompt = make_prompt(seed=0, target_tokens=512)
        return prompt.text + prompt.answer


def _text(prompt: VaultPrompt) -> Text:
    asked = question(prompt.key)
    context = prompt.text.removesuffix(asked)
    return Text(context, asked, (prompt.answer.strip(),), prompt.answer)


def _require_unseen(seed: int) -> None:
    if seed >= FIRST_TRAINING_SEED:
        raise UserError(
            f"the vault's checkpoint was trained on prompts of seeds such as {seed}",
            f"use a seed below {FIRST_TRAINING_SEED}",
        )
