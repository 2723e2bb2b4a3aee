"""Names of the graphs' inputs and outputs (after Hugging Face's), and of our operator domain."""

DOMAIN = "snapexport"
"""Domain of the model-local functions, and of the plugins of the same names."""

INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
PAST_LENGTH = "past_length"
CHUNK_LENGTH = "chunk_length"
PROMPT_LENGTH = "prompt_length"
LOGITS = "logits"

_PAST = "past_key_values."
_PRESENT = "present."


def past_key(layer: int) -> str:
    """Keys before the step, [B,Hkv,S,D]."""
    return f"{_PAST}{layer}.key"


def past_value(layer: int) -> str:
    """Values before the step, [B,Hkv,S,D]."""
    return f"{_PAST}{layer}.value"


def present_key(layer: int) -> str:
    """Keys after the step; may be bound to the very buffer of `past_key`."""
    return f"{_PRESENT}{layer}.key"


def present_value(layer: int) -> str:
    """Values after the step; may be bound to the very buffer of `past_value`."""
    return f"{_PRESENT}{layer}.value"


def query_window(layer: int) -> str:
    """Queries of the last W tokens, [1,H,W,D]."""
    return f"query_window.{layer}"


def query(layer: int) -> str:
    """Scaled queries of a decode step, [B,H,1,D], where it was made to show them."""
    return f"query.{layer}"


def topk_positions(layer: int) -> str:
    """What the vote kept, int64 [1,Hkv,K], ascending, -1 where unused."""
    return f"topk_positions.{layer}"


def is_past(name: str) -> bool:
    """Whether it names a cache input."""
    return name.startswith(_PAST)


def is_present(name: str) -> bool:
    """Whether it names a cache output."""
    return name.startswith(_PRESENT)


def is_cache(name: str) -> bool:
    """Whether it names a cache, before or after the step."""
    return is_past(name) or is_present(name)


def past_of(present: str) -> str:
    """The cache input that may share its buffer with the cache output `present`."""
    return present.replace(_PRESENT, _PAST, 1) if is_present(present) else present


def present_of(past: str) -> str:
    """The cache output that may share its buffer with the cache input `past`."""
    return past.replace(_PAST, _PRESENT, 1) if is_past(past) else past
