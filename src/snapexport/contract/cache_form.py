"""How decode's compressed caches are held, and how attention goes over them."""

from dataclasses import dataclass
from typing import Literal, get_args

CacheDType = Literal["fp32", "fp16", "bf16", "int8"]
DecodeAttention = Literal["all", "valid"]
CACHE_DTYPES: tuple[CacheDType, ...] = get_args(CacheDType)
DECODE_ATTENTIONS: tuple[DecodeAttention, ...] = get_args(DecodeAttention)


@dataclass(frozen=True)
class CacheForm:
    """How a compressed cache is held and read; its slots are the same either way.

    dtype: of keys and values; None: as the model calculates. attention: `all` reads every slot and
    leaves out those that hold nothing, `valid` reads no slot beyond the valid ones.
    """

    dtype: CacheDType | None = None
    attention: DecodeAttention = "all"


PLAIN = CacheForm()
"""That of a full cache, always."""
