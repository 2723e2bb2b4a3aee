"""Graph options: choices that change the graphs beyond geometry, target and dtype.

To add one, add a field here, a check in `resolved`, and a pass in `graphs/kinds.py`. The flag of
`build` and `plan` and the manifest's key follow from the field. Knows no graph.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from snapexport.contract.exclusions import require_compatible
from snapexport.contract.sparse_prefill import SparsePrefill
from snapexport.contract.targets import (
    Target,
    capabilities,
)
from snapexport.errors import UserError
from snapexport.files.dtypes import CACHE_DTYPES, CacheDType, DType

PREFILLS = ("chunks", "blocks")
"""How prompts are taken: blocks need `GraphOptions.extend`."""

PromptCacheDType = Literal["fp16"]
PROMPT_CACHE_DTYPES: tuple[PromptCacheDType, ...] = get_args(PromptCacheDType)
DecodeAttention = Literal["all", "valid"]
DECODE_ATTENTIONS: tuple[DecodeAttention, ...] = get_args(DecodeAttention)


def _help(text: str, group: str = "advanced") -> dict[str, str]:
    """Metadata of a flag. group: "", what users choose; "cache" or "advanced"."""
    return {"help": text, "group": group}


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """How the graphs of a build differ beyond its geometry, target and dtype.

    cache_dtype: of compressed caches; None: the build's dtype, which full caches always have.
    prompt_cache_dtype: of the cache of the prompt in prefill; None: the build's dtype.
    decode_attention: cache slots of a compressed cache that a decode step reads.
    top_tokens: number of likeliest next tokens that the graphs output beside the logits.
    share_weights: matrices are inputs of the graphs, which then run on one copy; None: where every
        graph would hold its own.
    extend: the build has extend.onnx.
    prefill_budget: positions of the past that chunks amid a longer prompt attend to; 0: all.
    mtp: graphs of the layer for multi-token prediction, and the hidden states that it takes.
    data_parallel_attention: each rank decodes batch slots of its own, with all heads of their
        latents.
    """

    cache_dtype: CacheDType | None = field(
        default=None,
        metadata=_help(
            "dtype of compressed caches only, beside --dtype fp32: fp16, or int8 in ONNX Runtime "
            "(default: the dtype)",
            "cache",
        ),
    )
    prompt_cache_dtype: PromptCacheDType | None = field(
        default=None,
        metadata=_help(
            "dtype of the prompt's full-length cache in prefill: fp16 beside --dtype fp32, in ONNX "
            "Runtime (default: the dtype)",
            "cache",
        ),
    )
    decode_attention: DecodeAttention | None = field(
        default=None,
        metadata=_help(
            "cache slots that a decode step reads: all, or in ONNX Runtime only the valid ones "
            "(default: all; valid for int8)"
        ),
    )
    top_tokens: int = field(
        default=0,
        metadata=_help(
            "likeliest next tokens that the graphs output, so that a GPU need not copy all logits "
            "in each step; 0: none"
        ),
    )
    share_weights: bool | None = field(
        default=None,
        metadata=_help(
            "make matrices inputs of the graphs, so that all graphs and engines run on one copy in "
            "memory (default: for the tensorrt targets; ONNX Runtime on the CPU maps one copy "
            "anyway)"
        ),
    )
    extend: bool = field(
        default=False,
        metadata=_help(
            "add extend.onnx, which takes further tokens onto a compressed cache: a turn of a chat "
            "costs its own tokens, and prompts may be longer than --L-max",
            "",
        ),
    )
    prefill_budget: int = field(
        default=0,
        metadata=_help(
            "sparse prefill: all chunks of a long prompt but the last attend to N positions of its "
            "past; 0: to all",
            "",
        ),
    )
    mtp: bool = field(
        default=False,
        metadata=_help(
            "also write graphs of the checkpoint's layer for multi-token prediction, which drafts "
            "a further token (DeepSeek-V3 and R1)"
        ),
    )
    data_parallel_attention: bool = field(
        default=False,
        metadata=_help(
            "with --tensor-parallel, for latent attention: each rank holds the decode caches of "
            "its own batch slots, in place of all (DeepSeek)"
        ),
    )

    def __post_init__(self) -> None:
        require_one_of("--cache-dtype", self.cache_dtype, CACHE_DTYPES)
        require_one_of("--prompt-cache-dtype", self.prompt_cache_dtype, PROMPT_CACHE_DTYPES)
        require_one_of("--decode-attention", self.decode_attention, DECODE_ATTENTIONS)
        if self.top_tokens < 0:
            raise UserError(
                f"--top-tokens {self.top_tokens} is below 0",
                "use 0 for none, or as many as the largest top-k of your requests",
            )
        if self.prefill_budget < 0:
            raise UserError(
                f"--prefill-budget {self.prefill_budget} is below 0",
                "use 0 for prefill that attends to everything",
            )

    def resolved(self, target: Target, dtype: DType) -> "GraphOptions":
        """A copy with defaults filled in. Raises UserError for what the target does not support."""
        require_compatible(vars(self) | {"target": target, "dtype": dtype})
        cache_dtype = None if self.cache_dtype == dtype else self.cache_dtype
        prompt_dtype = None if self.prompt_cache_dtype == dtype else self.prompt_cache_dtype
        by_default: DecodeAttention = "valid" if cache_dtype == "int8" else "all"
        attention = self.decode_attention or by_default
        _require_topk(self.top_tokens, target)
        shares = self.share_weights
        if shares is None:
            shares = capabilities(target).weights_per_graph
        return replace(
            self,
            cache_dtype=cache_dtype,
            prompt_cache_dtype=prompt_dtype,
            decode_attention=attention,
            share_weights=shares,
        )

    def require_vocabulary(self, vocab_size: int) -> None:
        """Raise UserError for more top tokens than the model has."""
        if self.top_tokens > vocab_size:
            raise UserError(
                f"--top-tokens {self.top_tokens} is above the model's vocabulary of {vocab_size} "
                "tokens",
                "use as many as the largest top-k of your requests",
            )

    def require_room(self, prefill_chunk: int, L_max: int) -> None:
        """Raise UserError for a budget of prefill that does not suit its chunks."""
        if sparse := self.sparse_prefill(prefill_chunk):
            sparse.require_room(L_max)

    def sparse_prefill(self, prefill_chunk: int) -> SparsePrefill | None:
        """What a sparse chunk of so many tokens attends to; None where no chunk is sparse."""
        return SparsePrefill(self.prefill_budget, prefill_chunk) if self.prefill_budget else None

    def require_ranks(self, ranks: int, batches: Collection[int]) -> None:
        """Raise UserError for batch slots that ranks cannot share equally.

        batches: batch slots of each decode graph.
        """
        uneven = next((count for count in batches if count % ranks), None)
        require_compatible(vars(self) | {"uneven_slots": uneven})

    @property
    def attends_valid(self) -> bool:
        return self.decode_attention == "valid"

    def of_full_cache(self) -> "GraphOptions":
        """A copy for the full cache, which has only one form."""
        return replace(
            self,
            cache_dtype=None,
            prompt_cache_dtype=None,
            decode_attention="all",
            extend=False,
            prefill_budget=0,
        )

    def of_prompt_cache(self) -> "GraphOptions":
        """A copy for prefill's cache, which chunks are appended to."""
        return replace(self, cache_dtype=self.prompt_cache_dtype, decode_attention="all")


def _require_topk(count: int, target: Target) -> None:
    record = capabilities(target)
    if record.largest_topk is not None and count > record.largest_topk:
        raise UserError(
            f"--top-tokens {count} is above {record.largest_topk}, the most that "
            f"{record.title}'s TopK gives",
            f"use --top-tokens {record.largest_topk} or less: other requests sample from the "
            "logits",
        )


def require_one_of(flag: str, value: str | None, allowed: tuple[str, ...]) -> None:
    """Raise UserError for a value that is neither None nor allowed."""
    if value not in (None, *allowed):
        raise UserError(f"{flag} '{value}' is not known", f"choose from {', '.join(allowed)}")
