"""Names of the graphs' inputs and outputs (after Hugging Face's), and of our operator domain."""

from collections.abc import Iterable

DOMAIN = "snapexport"
"""Domain of the model-local functions, and of the plugins of the same names."""

INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
PAST_LENGTH = "past_length"
CHUNK_LENGTH = "chunk_length"
PROMPT_LENGTH = "prompt_length"
LOGITS = "logits"

TEMPERATURE = "temperature"
"""Float32 [B], above 0: what `LOG_NORMALIZER` divides the logits by."""
TOP_TOKENS = "top_tokens"
"""Int64 [B,N], the likeliest tokens, by descending logit."""
TOP_LOGITS = "top_logits"
"""Float32 [B,N], their logits."""
LOG_NORMALIZER = "log_normalizer"
"""Float32 [B], logsumexp(logits / temperature) over the whole vocabulary."""

_ASKED = frozenset({LOGITS, TOP_TOKENS, TOP_LOGITS, LOG_NORMALIZER})

OF_HOST = _ASKED | {
    INPUT_IDS,
    POSITION_IDS,
    PAST_LENGTH,
    CHUNK_LENGTH,
    PROMPT_LENGTH,
    TEMPERATURE,
}
"""What the host writes before a run, or reads after it."""


def read_each_run(outputs: Iterable[str]) -> frozenset[str]:
    """Those of a graph's outputs that the host reads after every run.

    Logits wait until somebody asks, in a graph that gives their top_tokens.
    """
    asked = _ASKED.intersection(outputs)
    return asked - {LOGITS} if TOP_TOKENS in asked else asked


_PAST = "past_key_values."
_PRESENT = "present."
_ATTENDED = "attended."


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


def past_key_scale(layer: int) -> str:
    """What keys in 8 bits are to be multiplied by, float32 [B,Hkv,1,D]."""
    return f"{_PAST}{layer}.key_scale"


def past_value_scale(layer: int) -> str:
    """The same of values."""
    return f"{_PAST}{layer}.value_scale"


def present_key_scale(layer: int) -> str:
    """`past_key_scale` once more: a step changes nothing of it."""
    return f"{_PRESENT}{layer}.key_scale"


def present_value_scale(layer: int) -> str:
    """`past_value_scale` once more."""
    return f"{_PRESENT}{layer}.value_scale"


def attended_key(layer: int) -> str:
    """`present_key` once more, where attention asks for an output in the caches' own buffer."""
    return f"{_ATTENDED}{layer}.key"


def attended_value(layer: int) -> str:
    """`present_value` once more."""
    return f"{_ATTENDED}{layer}.value"


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


def is_attended(name: str) -> bool:
    """Whether it names a cache output that is there for its buffer alone."""
    return name.startswith(_ATTENDED)


def past_of(output: str) -> str:
    """The cache input that shares its buffer with a cache output, or may."""
    if is_attended(output):
        return output.replace(_ATTENDED, _PAST, 1)
    return output.replace(_PRESENT, _PAST, 1) if is_present(output) else output


def present_of(past: str) -> str:
    """The cache output that may share its buffer with the cache input `past`."""
    return past.replace(_PAST, _PRESENT, 1) if is_past(past) else past
