"""Makes the rows the vault's model is trained on, from the registers of its prompts.

A row is a register and many questions at its end, so that one pass teaches many answers.
The words and the layout are those of `snapexport.vault.prompts`; terse rows leave out the
sentence of the question, so that more questions fit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from snapexport.vault import prompts
from tools.studies.train_vault.spelling import EOS

LONGEST = 2304
# A terse question is a key and a colon; each answer is taught with its end token.
TERSE_TOKENS = 2
TAUGHT = prompts.ANSWER_WORDS + 1
# This many entries count as just read.
RECENT = 16


@dataclass(frozen=True)
class Shape:
    """The shape of a row.

    Terse rows ask with the key alone, so more questions fit. Scattered rows ask in the
    midst of the register, often for what has just been said.
    """

    length: int
    questions: int
    terse: bool = False
    scattered: bool = False

    def block(self) -> int:
        """Count the tokens of a question, its answer, the end token and a newline."""
        return (TERSE_TOKENS if self.terse else prompts.QUESTION_TOKENS) + TAUGHT + 1


@dataclass
class Batch:
    """Token rows, for each the places whose next token is taught, and those next tokens."""

    ids: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor


def make_row(rng: random.Random, shape: Shape) -> str:
    """Write a register and questions about its entries, in all of the shape's length."""
    tokens = shape.length - prompts.BOS_TOKENS - shape.questions * shape.block()
    register = prompts.make_register(rng, tokens, rng.randint(*_entries(shape, tokens)))
    if shape.scattered:
        return _scatter(rng, shape, register)
    asked = _asked(rng, register, shape.questions)
    return register.text + "".join(_block(shape, register, key) for key in asked)


def _entries(shape: Shape, tokens: int) -> tuple[int, int]:
    """Return the fewest and the most entries of a register of this many tokens."""
    return max(shape.questions + 1, tokens // 24), max(shape.questions + 1, tokens // 10)


def _asked(rng: random.Random, register: prompts.Register, count: int) -> list[str]:
    """Draw distinct keys; every other time the first ones stand near the register's end.

    Without this the entries just before a question would hardly ever be asked for.
    """
    recent: list[str] = []
    if rng.random() < 0.5:
        order = prompts.keys_in_order(register)
        recent = rng.sample(order[-max(1, count // 2) :], max(1, count // 4))
    others = [key for key in register.entries if key not in recent]
    return recent + rng.sample(others, count - len(recent))


def _scatter(rng: random.Random, shape: Shape, register: prompts.Register) -> str:
    """Ask after random lines, every other time for one of the last entries read."""
    lines = register.text.splitlines(keepends=True)
    first = next(place for place, line in enumerate(lines) if ":" in line)
    after = sorted(rng.choices(range(first, len(lines)), k=shape.questions), reverse=True)
    read, text = prompts.keys_in_order(register), []
    known: list[str] = []
    for place, line in enumerate(lines):
        text.append(line)
        known += [read[len(known)]] if ":" in line else []
        while after and after[-1] == place:
            after.pop()
            near = known[-RECENT:] if rng.random() < 0.5 else known
            text.append(_block(shape, register, rng.choice(near)))
    return "".join(text)


def _block(shape: Shape, register: prompts.Register, key: str) -> str:
    """Write a question and its answer."""
    asking = f"{key}:" if shape.terse else prompts.question(key)
    return f"{asking}{prompts.answer_text(register.entries[key])}{EOS}\n"


def make_batch(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, shape: Shape, tokens: int
) -> Batch:
    """Make rows of one shape, about `tokens` tokens together; end tokens mark the answers."""
    rows = [make_row(rng, shape) for _ in range(max(1, tokens // shape.length))]
    ids = torch.tensor(tokenizer(rows).input_ids)
    ends = (ids == tokenizer.eos_token_id).nonzero()[:, 1].view(len(rows), -1, 1)
    places = (ends - TAUGHT + torch.arange(TAUGHT)).flatten(1)
    return Batch(ids, places, ids.gather(1, places + 1))
