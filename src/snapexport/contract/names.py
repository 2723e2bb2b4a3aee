"""Names of the graphs' inputs and outputs (after Hugging Face's), and of our operator domain."""

import re
from collections.abc import Callable
from typing import NamedTuple

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
"""The last layer's output after its norm, [B,C,E]: what the head reads."""

TEMPERATURE = "temperature"
"""Float32 [B], above 0: the divisor of the logits in `Likeliest.log_normalizer`."""


class Likeliest(NamedTuple):
    """Names of the outputs from which the host samples, in graphs that spare it the logits.

    tokens: int64 [B,N], the likeliest tokens, by descending logit. logits: float32 [B,N], theirs.
    log_normalizer: float32 [B], logsumexp(logits / temperature) over the whole vocabulary.
    """

    tokens: str
    logits: str
    log_normalizer: str


_PAST = "past_key_values."
_PRESENT = "present."
_ATTENDED = "attended."
_QUERY_WINDOW = "query_window."
_PAST_VOTES, _VOTES = "past_votes.", "votes."


OfNumber = Callable[[int], str]
"""The name of a layer's tensor, or of one between two segments."""


def numbered(stem: str, end: str = "") -> OfNumber:
    """Names that have a number of a layer, or of a cache, between `stem` and `end`."""
    return lambda number: f"{stem}{number}{end}"


def _begins(*stems: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(stems)


def _ends(*ends: str) -> Callable[[str], bool]:
    return lambda name: name.endswith(ends)


past_key = numbered(_PAST, ".key")
"""Keys before the step, [B,Hkv,S,D]."""
past_value = numbered(_PAST, ".value")
"""Values before the step, [B,Hkv,S,D]."""
present_key = numbered(_PRESENT, ".key")
"""Keys after the step, [B,Hkv,S,D]; may share the buffer of `past_key`."""
present_value = numbered(_PRESENT, ".value")
"""Values after the step, [B,Hkv,S,D]; may share the buffer of `past_value`."""
attended_key = numbered(_ATTENDED, ".key")
"""A second output equal to `present_key`, for operators that write through an output."""
attended_value = numbered(_ATTENDED, ".value")
"""A second output equal to `present_value`."""
query_window = numbered(_QUERY_WINDOW)
"""Queries of the last W tokens, [1,H,W,D]."""
query = numbered("query.")
"""Scaled queries of a decode step, [B,H,1,D], in graphs made to output them."""
past_votes = numbered(_PAST_VOTES)
"""`votes` before a chunk; may share its buffer."""
votes = numbered(_VOTES)
"""What each position of a prompt is worth to each KV head, float32 [1,Hkv,T]."""
slot_positions = numbered("slot_positions.")
"""The position that each cache slot of a row holds, int64 [1,Hkv,S], -1 where empty."""

topk_positions = numbered("topk_positions.")
"""Kept positions, int64 [1,Hkv,K], ascending, -1 where unused."""
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL = "AllReduce", "AllGather", "AllToAll"
"""Collectives of our domain, where all ranks of a build meet. They have no body."""

_TO_REDUCE, _TO_GATHER, _GATHERED, _CARRIED = "reduce.", "gather.", "gathered.", "carried."
_TO_EXCHANGE = "exchange."


to_reduce = numbered(_TO_REDUCE)
"""A tensor between two segments of a graph: a rank's part, then the sum of all ranks' parts."""
to_gather = numbered(_TO_GATHER)
"""The same: a rank's part [n,...], which the next segments read as `gathered`."""
to_exchange = numbered(_TO_EXCHANGE)
"""The same: rows [ranks*n,...] for every rank, then those from every rank."""
gathered = numbered(_GATHERED)
"""All ranks' parts, in their order, [ranks*n,...]."""
carried = numbered(_CARRIED)
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


def is_of_host(name: str) -> bool:
    """Whether the host writes the tensor before a run, or reads it after.

    Those are the tensors without the number of a layer, but for hidden states.
    """
    return "." not in name and not name.endswith(HIDDEN_STATES)


def number_of(cache: str) -> int:
    """The number in the name of a cache input."""
    return int(cache.removeprefix(_PAST).partition(".")[0])


is_past = _begins(_PAST, _PAST_VOTES)
"""Whether it names a cache input."""
is_present = _begins(_PRESENT)
"""Whether it names a cache output."""

is_conv = _ends(".conv")
"""Whether it names `past_conv`, or what is there after the step."""
is_state = _ends(".conv", ".matrix")
"""Whether it names a recurrent state, before or after the step: it has no positions."""
is_cache = _begins(_PAST, _PRESENT)
"""Whether it names a cache, before or after the step."""
is_attended = _begins(_ATTENDED)
"""Whether it names an output of `attended_key` or `attended_value`."""


_BUFFERS = (_PAST, _PRESENT), (_PAST, _ATTENDED), (_PAST_VOTES, _VOTES)
"""Beginnings of inputs, and of the outputs that may share their buffers."""
_AFTER = "present_"
"""`present_NAME.{l}` may share the buffer of the input `NAME.{l}`, such as slot_positions."""
_OF_LAYER = re.compile(rf"(?!{re.escape(_QUERY_WINDOW)})[a-z_]+\.[0-9]+")


def past_of(output: str) -> str:
    """The input that shares, or may share, its buffer with an output."""
    for past, present in _BUFFERS:
        if output.startswith(present):
            return past + output.removeprefix(present)
    return output.removeprefix(_AFTER)


def present_of(past: str) -> str:
    """The output that may share its buffer with the input `past`, as a cache's does."""
    for stem, present in _BUFFERS:
        if past.startswith(stem):
            return present + past.removeprefix(stem)
    return _AFTER + past if _OF_LAYER.fullmatch(past) else past
