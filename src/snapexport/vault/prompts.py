"""Makes the vault's prompts: a register of entries among prose, and a question about one.

Every word of the register is one token of the vault's tokenizer, so the length of a
prompt in tokens is known here without the tokenizer: a line costs its words, its
punctuation and its newline. The same lines serve to train the checkpoint and to test it.
Every word is a common English one and is in one list only, so that a key never occurs
among the values and neither occurs in the prose between the entries.
"""

import random
from dataclasses import dataclass

_ANIMALS = """
ant ape bat bear beaver bee beetle bison boar buck bug bull camel carp cat cobra cod colt
cow coyote crab crane cricket crow cub cuckoo deer dingo dog donkey dove duck eagle eel
elk emu ewe falcon fawn ferret finch fly foal fox frog gecko gibbon giraffe goat goose
gull hamster hare hawk hen heron hippo hog hornet horse hound ibex ibis jackal jaguar jay
kitten koala lamb lark lemur leopard lion lizard llama lobster locust lynx magpie mantis
mare marten mink mole monkey moose moth mouse mule newt octopus orca osprey ostrich otter
owl ox oyster panda parrot pelican penguin pig pigeon pike pony poodle puffin puma pup
python quail rabbit raccoon ram rat raven robin rook rooster salmon seal shark sheep
shrimp sloth slug snail snake sparrow spider squid squirrel stag stork swallow swan tiger
toad trout tuna turkey turtle viper vole vulture walrus wasp weasel whale wolf wombat worm
wren yak zebra
"""

_NAMES = """
Ada Adam Alan Alice Amy Anna Arthur Ben Bill Bob Carl Clara Dan David Diana Ella Emma Eric
Eva Felix Frank Fred George Greta Hans Harry Helen Henry Hugo Ian Ida Ivan Jack James Jane
John Julia Karl Kate Laura Leo Lisa Lucy Marco Maria Mark Martin Mary Max Mia Nina Nora
Oscar Otto Paul Peter Ralph Rita Rosa Ruth Sam Sara Simon Sofia Tom Vera
"""

_PLACES = """
Athens Berlin Bern Boston Cairo Chile Cuba Delhi Dover Egypt France Ghana Greece India
Iran Italy Japan Kenya Lima London Madrid Malta Milan Nepal Norway Oslo Paris Peru Rome
Spain Texas Tokyo Turin Wales
"""

_VALUES = """
acorn amber anchor apple apron arrow ash axe bag ball balm banana band banjo barley barrel
basil basket bead bean bell belt berry birch blade blue board boat bolt bone book boot
bottle bow bowl box brass bread brick bridge bronze broom brown brush bucket butter button
cable cake candle cane canoe cap card cart cedar chain chair chalk cheese cherry chest
cider clay cloak clock cloth clover coal coat cocoa coffee coin comb compass copper coral
cord cork cotton cream crown crystal cup curtain dagger desk dice dish drum elm ember
emerald engine fan feather fern fiddle fig flag flint flour flower flute fork garlic
garnet gate gem ginger glass globe glove glue gold grain grape grass green grey guitar
hammer harp hat helmet holly honey hook horn ink iron ivory ivy jade jar jasmine jelly
jewel juice kettle key knife ladder lamp lantern lead leaf leather lemon lens letter lily
linen lock maple marble mask match melon milk mint mirror mitten moss mug nail necklace
needle net nickel nut oak oat oil olive onion opal orange organ paint paper peach pear
pearl pebble pen pepper petal piano pillow pine pink pipe plate plum pot powder purple
purse quartz quill raft rag reed ribbon rice ring rock rod root rope rose ruby rug saddle
salt sand satin scarf scroll shell shield shoe silk silver slate soap spade spoon steel
stone sugar sword table tea thimble tin torch towel umbrella vase velvet violet violin
wagon wax wheat wheel willow window wine wire wood wool yellow zinc
"""

KEYS: tuple[str, ...] = tuple((_ANIMALS + _NAMES + _PLACES).split())
VALUES: tuple[str, ...] = tuple(_VALUES.split())

NOUNS: tuple[str, ...] = tuple(
    "rain wind snow harbour road hill valley forest garden house street field".split()
)
ADJECTIVES: tuple[str, ...] = tuple("old quiet cold long dark small bright empty".split())
VERBS: tuple[str, ...] = tuple("fell slept stood waited rested lay faded turned".split())
PLACINGS: tuple[str, ...] = tuple("on near under over behind beside".split())
FRAME: tuple[str, ...] = tuple("Register of the vault What is kept for The".split())

ALL_WORDS: tuple[str, ...] = KEYS + VALUES + NOUNS + ADJECTIVES + VERBS + PLACINGS + FRAME

HEADER = "Register of the vault.\n"
ANSWER_WORDS = 4
BOS_TOKENS = 1
HEADER_TOKENS = 6
ENTRY_TOKENS = ANSWER_WORDS + 3
QUESTION_TOKENS = 9

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
