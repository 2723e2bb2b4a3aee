"""Names of the graphs' inputs and outputs (after Hugging Face's), and of our operator domain."""

import re
from collections.abc import Callable, Iterable

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


OfNumber = Callable[[int], str]
"""The name of a layer's tensor, or of one between two segments."""


def _numbered(stem: str, end: str = "") -> OfNumber:
    return lambda number: f"{stem}{number}{end}"


def _begins(*stems: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(stems)


def _ends(*ends: str) -> Callable[[str], bool]:
    return lambda name: name.endswith(ends)


past_key = _numbered(_PAST, ".key")
"""Keys before the step, [B,Hkv,S,D]."""
past_value = _numbered(_PAST, ".value")
"""Values before the step, [B,Hkv,S,D]."""
present_key = _numbered(_PRESENT, ".key")
"""Keys after the step, [B,Hkv,S,D]; may share the buffer of `past_key`."""
present_value = _numbered(_PRESENT, ".value")
"""Values after the step, [B,Hkv,S,D]; may share the buffer of `past_value`."""
past_conv = _numbered(_PAST, ".conv")
"""What a layer's convolution still reads of the positions before the step, [B,D,k-1]."""
past_matrix = _numbered(_PAST, ".matrix")
"""The matrix state of a layer before the step, float32 [B,H,dk,dv]."""
past_key_scale = _numbered(_PAST, ".key_scale")
"""Scale of int8 keys, float32 [B,Hkv,1,D]: key = int8 * scale."""
past_block_key = _numbered(_PAST, ".block_key")
"""Means of the keys of each block of a full-length cache, [1,Hkv,T/block,D] (sparse prefill)."""
present_block_key = _numbered(_PRESENT, ".block_key")
"""`past_block_key` with the blocks before the chunk."""
past_value_scale = _numbered(_PAST, ".value_scale")
"""Scale of int8 values, float32 [B,Hkv,1,D]."""
present_key_scale = _numbered(_PRESENT, ".key_scale")
"""`past_key_scale` after the step, unchanged."""
present_value_scale = _numbered(_PRESENT, ".value_scale")
"""`past_value_scale` after the step, unchanged."""
attended_key = _numbered(_ATTENDED, ".key")
"""A second output equal to `present_key`, for operators that write through an output."""
attended_value = _numbered(_ATTENDED, ".value")
"""A second output equal to `present_value`."""
query_window = _numbered(_QUERY_WINDOW)
"""Queries of the last W tokens, [1,H,W,D]."""
votes = _numbered(_VOTES)
"""The largest attention of repeated tokens to each position so far, float32 [1,Hkv,T]."""
present_votes = _numbered(_PRESENT_VOTES)
"""`votes` after a further repeated chunk."""
query = _numbered("query.")
"""Scaled queries of a decode step, [B,H,1,D], in graphs made to output them."""
topk_positions = _numbered("topk_positions.")
"""Kept positions, int64 [1,Hkv,K], ascending, -1 where unused."""
slot_positions = _numbered(_SLOT_POSITIONS)
"""The position that each cache slot holds, int64 [1,Hkv,S], -1 where empty."""
present_slot_positions = _numbered(_PRESENT_SLOT_POSITIONS)
"""`slot_positions` after the step."""
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL = "AllReduce", "AllGather", "AllToAll"
"""Collectives of our domain, where all ranks of a build meet. They have no body."""

_TO_REDUCE, _TO_GATHER, _GATHERED, _CARRIED = "reduce.", "gather.", "gathered.", "carried."
_TO_EXCHANGE = "exchange."


to_reduce = _numbered(_TO_REDUCE)
"""A tensor between two segments of a graph: a rank's part, then the sum of all ranks' parts."""
to_gather = _numbered(_TO_GATHER)
"""The same: a rank's part [n,...], which the next segments read as `gathered`."""
to_exchange = _numbered(_TO_EXCHANGE)
"""The same: rows [ranks*n,...] for every rank, then those from every rank."""
gathered = _numbered(_GATHERED)
"""All ranks' parts, in their order, [ranks*n,...]."""
carried = _numbered(_CARRIED)
"""A tensor that a segment leaves to later ones of the same rank."""
is_between = _begins(_TO_REDUCE, _TO_GATHER, _TO_EXCHANGE, _CARRIED)
"""Whether a segment may leave a tensor of that name to the next ones."""
is_reduced = _begins(_TO_REDUCE)
"""Whether it names a tensor of `to_reduce`."""
is_exchanged = _begins(_TO_EXCHANGE)
"""Whether it names a tensor of `to_exchange`."""


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


def is_place(name: str) -> bool:
    """Whether it names one of `place_inputs`."""
    return _PLACE.fullmatch(name) is not None


def is_of_host(name: str) -> bool:
    """Whether the host writes the tensor before a run, or reads it after."""
    return name in _OF_HOST or is_place(name)


def number_of(cache: str) -> int:
    """The number in the name of a cache input."""
    return int(cache.removeprefix(_PAST).partition(".")[0])


is_past = _begins(_PAST)
"""Whether it names a cache input."""
is_present = _begins(_PRESENT)
"""Whether it names a cache output."""

is_conv = _ends(".conv")
"""Whether it names `past_conv`, or what is there after the step."""
is_state = _ends(".conv", ".matrix")
"""Whether it names a recurrent state, before or after the step: it has no positions."""
is_block_key = _ends(".block_key")
"""Whether it names `past_block_key` or `present_block_key`."""
is_cache = _begins(_PAST, _PRESENT)
"""Whether it names a cache, before or after the step."""
is_attended = _begins(_ATTENDED)
"""Whether it names an output of `attended_key` or `attended_value`."""


_BUFFERS = (
    (_PAST, _PRESENT),
    (_PAST, _ATTENDED),
    (_VOTES, _PRESENT_VOTES),
    (_SLOT_POSITIONS, _PRESENT_SLOT_POSITIONS),
)
"""Beginnings of inputs, and of the outputs that may share their buffers."""


def past_of(output: str) -> str:
    """The input that shares, or may share, its buffer with an output of a cache."""
    for past, present in _BUFFERS:
        if output.startswith(present):
            return past + output.removeprefix(present)
    return output


def present_of(past: str) -> str:
    """The output that may share its buffer with the input `past` of a cache."""
    for stem, present in _BUFFERS:
        if past.startswith(stem):
            return present + past.removeprefix(stem)
    return past
