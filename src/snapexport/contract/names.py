"""Names of the graphs' inputs and outputs (after Hugging Face's), and of our operator domain."""

import re
from collections.abc import Iterable

DOMAIN = "snapexport"
"""Domain of the model-local functions, and of the plugins of the same names."""

INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
PAST_LENGTH = "past_length"
CHUNK_LENGTH = "chunk_length"
PROMPT_LENGTH = "prompt_length"
RANK = "rank"
"""Int64 [1], the rank that runs the graph: which rows of the batch are its own."""
LOGITS = "logits"
HIDDEN_STATES = "hidden_states"
"""Of the last layer, after its norm, [B,C,E]: what the head reads. --mtp's graphs take them."""
NEXT_HIDDEN_STATES = "next_hidden_states"
"""The same of the layer for multi-token prediction: the `HIDDEN_STATES` of a step that follows."""

TEMPERATURE = "temperature"
"""Float32 [B], above 0: the divisor of the logits in `LOG_NORMALIZER`."""
TOP_TOKENS = "top_tokens"
"""Int64 [B,N], the likeliest tokens, by descending logit."""
TOP_LOGITS = "top_logits"
"""Float32 [B,N], their logits."""
LOG_NORMALIZER = "log_normalizer"
"""Float32 [B], logsumexp(logits / temperature) over the whole vocabulary."""

_SAMPLED = frozenset({LOGITS, TOP_TOKENS, TOP_LOGITS, LOG_NORMALIZER})

_OF_HOST = _SAMPLED | {
    INPUT_IDS,
    POSITION_IDS,
    PAST_LENGTH,
    CHUNK_LENGTH,
    PROMPT_LENGTH,
    RANK,
    TEMPERATURE,
}


def read_each_run(outputs: Iterable[str]) -> frozenset[str]:
    """The outputs of a graph that the host reads after every run.

    A graph with top_tokens leaves its logits on the device until a request needs them.
    """
    read = _SAMPLED.intersection(outputs)
    return read - {LOGITS} if TOP_TOKENS in read else read


_PLACE = re.compile(r"(write_slot|slot_positions)(_[1-9]\d*)?")
_PAST = "past_key_values."
_PRESENT = "present."
_ATTENDED = "attended."
_QUERY_WINDOW = "query_window."
_VOTES = "votes."
_PRESENT_VOTES = "present_votes."
_SLOT_POSITIONS = "slot_positions."
_PRESENT_SLOT_POSITIONS = "present_slot_positions."


def past_key(layer: int) -> str:
    """Keys before the step, [B,Hkv,S,D]."""
    return f"{_PAST}{layer}.key"


def past_value(layer: int) -> str:
    """Values before the step, [B,Hkv,S,D]."""
    return f"{_PAST}{layer}.value"


def present_key(layer: int) -> str:
    """Keys after the step, [B,Hkv,S,D]; may share the buffer of `past_key`."""
    return f"{_PRESENT}{layer}.key"


def present_value(layer: int) -> str:
    """Values after the step, [B,Hkv,S,D]; may share the buffer of `past_value`."""
    return f"{_PRESENT}{layer}.value"


def past_key_scale(layer: int) -> str:
    """Scale of int8 keys, float32 [B,Hkv,1,D]: key = int8 * scale."""
    return f"{_PAST}{layer}.key_scale"


def past_value_scale(layer: int) -> str:
    """Scale of int8 values, float32 [B,Hkv,1,D]."""
    return f"{_PAST}{layer}.value_scale"


def present_key_scale(layer: int) -> str:
    """`past_key_scale` after the step, unchanged."""
    return f"{_PRESENT}{layer}.key_scale"


def present_value_scale(layer: int) -> str:
    """`past_value_scale` after the step, unchanged."""
    return f"{_PRESENT}{layer}.value_scale"


def attended_key(layer: int) -> str:
    """A second output equal to `present_key`, for operators that write through an output."""
    return f"{_ATTENDED}{layer}.key"


def attended_value(layer: int) -> str:
    """A second output equal to `present_value`."""
    return f"{_ATTENDED}{layer}.value"


def query_window(layer: int) -> str:
    """Queries of the last W tokens, [1,H,W,D]."""
    return f"{_QUERY_WINDOW}{layer}"


def votes(layer: int) -> str:
    """The largest attention of repeated tokens to each position so far, float32 [1,Hkv,T]."""
    return f"{_VOTES}{layer}"


def present_votes(layer: int) -> str:
    """`votes` after a further repeated chunk."""
    return f"{_PRESENT_VOTES}{layer}"


def query(layer: int) -> str:
    """Scaled queries of a decode step, [B,H,1,D], in graphs made to output them."""
    return f"query.{layer}"


def topk_positions(layer: int) -> str:
    """Kept positions, int64 [1,Hkv,K], ascending, -1 where unused."""
    return f"topk_positions.{layer}"


def slot_positions(layer: int) -> str:
    """The position that each cache slot holds, int64 [1,Hkv,S], -1 where empty."""
    return f"{_SLOT_POSITIONS}{layer}"


def present_slot_positions(layer: int) -> str:
    """`slot_positions` after the step."""
    return f"{_PRESENT_SLOT_POSITIONS}{layer}"


ALL_REDUCE, ALL_GATHER, ALL_TO_ALL = "AllReduce", "AllGather", "AllToAll"
"""Collectives of our domain, where all ranks of a build meet. They have no body."""

_TO_REDUCE, _TO_GATHER, _GATHERED, _CARRIED = "reduce.", "gather.", "gathered.", "carried."
_TO_EXCHANGE = "exchange."


def to_reduce(index: int) -> str:
    """A tensor between two segments of a graph: a rank's part, then the sum of all ranks' parts."""
    return f"{_TO_REDUCE}{index}"


def to_gather(index: int) -> str:
    """The same: a rank's part [n,...], which the next segments read as `gathered`."""
    return f"{_TO_GATHER}{index}"


def to_exchange(index: int) -> str:
    """The same: rows [ranks*n,...] for every rank, then those from every rank."""
    return f"{_TO_EXCHANGE}{index}"


def gathered(index: int) -> str:
    """All ranks' parts, in their order, [ranks*n,...]."""
    return f"{_GATHERED}{index}"


def carried(index: int) -> str:
    """A tensor that a segment leaves to later ones of the same rank."""
    return f"{_CARRIED}{index}"


def is_between(name: str) -> bool:
    """Whether a segment may leave a tensor of that name to the next ones."""
    return name.startswith((_TO_REDUCE, _TO_GATHER, _TO_EXCHANGE, _CARRIED))


def is_reduced(name: str) -> bool:
    """Whether it names a tensor of `to_reduce`."""
    return name.startswith(_TO_REDUCE)


def is_exchanged(name: str) -> bool:
    """Whether it names a tensor of `to_exchange`."""
    return name.startswith(_TO_EXCHANGE)


def gathered_of(name: str) -> str | None:
    """The `gathered` of a tensor of `to_gather`."""
    return name.replace(_TO_GATHER, _GATHERED, 1) if name.startswith(_TO_GATHER) else None


def place_inputs(shape: int) -> tuple[str, str]:
    """Names of write_slot and slot_positions, of steps of several tokens.

    write_slot: int64 [B], the cache slot of a step's first token. slot_positions: int64 [B,S], the
    position that each cache slot holds once the step's tokens are written, -1 where empty; of a
    kept position any number from 0 on. shape: 0 for layers that are shaped like the first one, 1
    for the next shape, and so on.
    """
    suffix = f"_{shape + 1}" if shape else ""
    return f"write_slot{suffix}", f"slot_positions{suffix}"


def is_of_host(name: str) -> bool:
    """Whether the host writes the tensor before a run, or reads it after."""
    return name in _OF_HOST or _PLACE.fullmatch(name) is not None


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
    """Whether it names an output of `attended_key` or `attended_value`."""
    return name.startswith(_ATTENDED)


def past_of(output: str) -> str:
    """The input that shares, or may share, its buffer with an output of a cache."""
    if output.startswith(_PRESENT_SLOT_POSITIONS):
        return output.replace(_PRESENT_SLOT_POSITIONS, _SLOT_POSITIONS, 1)
    if output.startswith(_PRESENT_VOTES):
        return output.replace(_PRESENT_VOTES, _VOTES, 1)
    if is_attended(output):
        return output.replace(_ATTENDED, _PAST, 1)
    return output.replace(_PRESENT, _PAST, 1) if is_present(output) else output


def present_of(past: str) -> str:
    """The output that may share its buffer with the input `past` of a cache."""
    if past.startswith(_SLOT_POSITIONS):
        return past.replace(_SLOT_POSITIONS, _PRESENT_SLOT_POSITIONS, 1)
    if past.startswith(_VOTES):
        return past.replace(_VOTES, _PRESENT_VOTES, 1)
    return past.replace(_PAST, _PRESENT, 1) if is_past(past) else past
