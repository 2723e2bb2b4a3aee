"""Makes the vault's prompts: a register of entries among prose, and a question about one.

Every word of the register is one token of the vault's tokenizer, so the length of a
prompt in tokens is known here without the tokenizer: a line costs its words, its
punctuation and its newline. The same lines serve to train the checkpoint and to test it.
"""

import random
from dataclasses import dataclass

from snapexport.vault.words import ADJECTIVES, KEYS, NOUNS, PLACINGS, VALUES, VERBS

HEADER = "Register of the vault.\n"
ANSWER_WORDS = 4
BOS_TOKENS = 1
HEADER_TOKENS = 6
ENTRY_TOKENS = ANSWER_WORDS + 3
QUESTION_TOKENS = 9
FRAME_TOKENS = BOS_TOKENS + HEADER_TOKENS + QUESTION_TOKENS

# One entry for this many tokens: dense enough that a recent window holds few of them.
TOKENS_PER_ENTRY = 15
# Seeds below this one are for tests and measurements; training draws only from above it.
FIRST_TRAINING_SEED = 1_000_000_000

# The prose: T "The", a adjective, n noun, v verb, p placing, t "the". Each letter is a word.
_PATTERNS = ("Tnv", "Tanv", "Tnvptn", "Tanvptn", "Tanvptan")
_PATTERN_OF_COST = {len(pattern) + 2: pattern for pattern in _PATTERNS}
_COSTS = tuple(_PATTERN_OF_COST)
_WORDS = {"T": ("The",), "t": ("the",), "a": ADJECTIVES, "n": NOUNS, "v": VERBS, "p": PLACINGS}


@dataclass(frozen=True)
class Register:
    """The text of a register and what it keeps: four value words for each key."""

    text: str
    entries: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class VaultPrompt:
    """A prompt, the key it asks for, the answer a model must write, and its length.

    `tokens` counts the beginning-of-sequence token that the tokenizer adds.
    """

    text: str
    key: str
    answer: str
    tokens: int


def question(key: str) -> str:
    """Ask for a key; what follows this text is the answer."""
    return f"What is kept for {key}?\n{key}:"


def answer_text(values: tuple[str, ...]) -> str:
    """Write the values of an entry as the model is to write them."""
    return "".join(f" {value}" for value in values)


def make_register(rng: random.Random, tokens: int, entries: int) -> Register:
    """Shuffle `entries` entries with as much prose as fills exactly `tokens` tokens."""
    kept = _draw_entries(rng, entries)
    lines = [f"{key}:{answer_text(values)}\n" for key, values in kept.items()]
    lines += _draw_prose(rng, tokens - HEADER_TOKENS - entries * ENTRY_TOKENS)
    rng.shuffle(lines)
    return Register(HEADER + "".join(lines), kept)


def make_prompt(
    seed: int, target_tokens: int = 2048, entries: int | None = None, depth: float | None = None
) -> VaultPrompt:
    """Make the prompt of a seed, exactly `target_tokens` long with its first token.

    `entries` defaults to one for fifteen tokens. `depth` in [0, 1] asks for the entry at
    that place in the order of the register; by default any entry is as likely.
    """
    rng = random.Random(seed)
    count = default_entries(target_tokens) if entries is None else entries
    register = make_register(rng, target_tokens - BOS_TOKENS - QUESTION_TOKENS, count)
    drawn = rng.choice(list(register.entries))
    key = drawn if depth is None else _key_at(register, depth)
    answer = answer_text(register.entries[key])
    return VaultPrompt(register.text + question(key), key, answer, target_tokens)


def keys_in_order(register: Register) -> list[str]:
    """Return the keys in the order of their lines."""
    heads = (line.partition(":") for line in register.text.splitlines())
    return [head for head, colon, _ in heads if colon]


def default_entries(tokens: int) -> int:
    """Return the number of entries a prompt of this many tokens has by default."""
    return min(len(KEYS), max(1, tokens // TOKENS_PER_ENTRY))


def _draw_entries(rng: random.Random, count: int) -> dict[str, tuple[str, ...]]:
    """Draw keys and values; no two entries share the value at the same place."""
    if not 1 <= count <= len(KEYS):
        raise ValueError(f"entries must be from 1 to {len(KEYS)}, not {count}")
    columns = [rng.sample(VALUES, count) for _ in range(ANSWER_WORDS)]
    return dict(zip(rng.sample(KEYS, count), zip(*columns, strict=True), strict=True))


def _draw_prose(rng: random.Random, tokens: int) -> list[str]:
    """Draw sentences that cost exactly `tokens` tokens together."""
    lines: list[str] = []
    while tokens > 0:
        fitting = [cost for cost in _COSTS if _fillable(tokens - cost)]
        if not fitting:
            raise ValueError("no prose has this length: change the tokens or the entries")
        cost = rng.choice(fitting)
        words = (rng.choice(_WORDS[letter]) for letter in _PATTERN_OF_COST[cost])
        lines.append(" ".join(words) + ".\n")
        tokens -= cost
    if tokens < 0:
        raise ValueError("the entries do not fit into the prompt")
    return lines


def _fillable(tokens: int) -> bool:
    """Say whether sentences can cost exactly this much: sums of 5, 6, 8, 9 and 10."""
    return tokens >= 8 or tokens in (0, 5, 6)


def _key_at(register: Register, depth: float) -> str:
    """Return the key of the entry at a relative place in the order of the lines."""
    order = keys_in_order(register)
    return order[min(len(order) - 1, int(depth * len(order)))]
