"""Graph options: choices that change the graphs beyond geometry, target and dtype.

A cache method adds options of its own (`MethodOptions`). The flags of `build` and `plan` and the
manifest's keys follow from the fields. Knows no graph and no method.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

from snapexport.contract.model_facts import ModelFacts
from snapexport.contract.targets import Target
from snapexport.errors import UserError
from snapexport.files.dtypes import CACHE_DTYPES, CacheDType
from snapexport.files.nearby import closest, did_you_mean

PREFILLS = ("chunks", "blocks")
"""How prompts are taken: in blocks, onto a compressed cache, or in chunks."""

PromptCacheDType = Literal["fp16"]
PROMPT_CACHE_DTYPES: tuple[PromptCacheDType, ...] = get_args(PromptCacheDType)

DecodeAttention = Literal["all", "valid"]
DECODE_ATTENTIONS: tuple[DecodeAttention, ...] = get_args(DecodeAttention)


def option(default: Any, help: str, group: str = "advanced", **metadata: Any) -> Any:
    """A field that is a flag of `build` and `plan`.

    group: "", the flags that most people need; "cache" or "advanced". metadata: `choices`,
    `metavar`; recorded=False for a field that the manifest has elsewhere, or not at all;
    of_traces=True for one whose effect is in the traces; planned=False for one that only `build`
    has.
    """
    return field(default=default, metadata={"help": help, "group": group, **metadata})


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """The flags of one cache method, each a field made by `option`.

    on_full_cache: whether they change the graphs of the full cache too. self_checked: whether a
    build's small decoder that is compared with transformers has them. The checks raise UserError;
    none is made here.
    """

    on_full_cache: ClassVar[bool] = False
    self_checked: ClassVar[bool] = False

    def require_target(self, target: Target) -> None:
        """Check what the target can't do."""

    def require_model(self, model: ModelFacts) -> None:
        """Check what does not suit the model."""

    def require_chunk(self, prefill_chunk: int, L_max: int) -> None:
        """Check what does not suit the prefill chunk, or the longest prompt (both in tokens)."""

    def recorded(self) -> "MethodOptions":
        """A copy with what a manifest records; the other fields have their defaults."""
        again = {
            one.name: one.default for one in fields(self) if not one.metadata.get("recorded", True)
        }
        return replace(self, **again)


Options = TypeVar("Options", bound=MethodOptions)


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """How the graphs of a build differ beyond its geometry, target and dtype.

    cache_dtype: of compressed caches; None: the build's dtype, which full caches always have.
    prompt_cache_dtype: of the cache of the prompt in prefill; None: the build's dtype.
    decode_attention: cache slots of a compressed cache that a decode step reads.
    share_weights: matrices are inputs of the graphs, which then run on one copy; None: where every
        graph would hold its own.
    data_parallel_attention: each rank decodes batch slots of its own, with all heads of their
        latents.
    methods: the options of cache methods, where they are not the defaults.
    """

    cache_dtype: CacheDType | None = option(
        None,
        "dtype of compressed caches only, beside --dtype fp32: fp16, or int8 in ONNX Runtime "
        "(default: the dtype)",
        "cache",
    )
    prompt_cache_dtype: PromptCacheDType | None = option(
        None,
        "dtype of the prompt's full-length cache in prefill: fp16 beside --dtype fp32, in ONNX "
        "Runtime (default: the dtype)",
        "cache",
    )
    decode_attention: DecodeAttention | None = option(
        None,
        "cache slots that a decode step reads: all, or in ONNX Runtime only the valid ones "
        "(default: all; valid for int8)",
    )
    share_weights: bool | None = option(
        None,
        "make matrices inputs of the graphs, so that all graphs and engines run on one copy in "
        "memory (default: for the tensorrt targets; ONNX Runtime on the CPU maps one copy anyway)",
    )
    data_parallel_attention: bool = option(
        False,
        "with --tensor-parallel, for latent attention: each rank holds the decode caches of its "
        "own batch slots, in place of all (DeepSeek)",
    )
    methods: tuple[MethodOptions, ...] = ()

    def __post_init__(self) -> None:
        require_one_of("--cache-dtype", self.cache_dtype, CACHE_DTYPES)
        require_one_of("--prompt-cache-dtype", self.prompt_cache_dtype, PROMPT_CACHE_DTYPES)
        require_one_of("--decode-attention", self.decode_attention, DECODE_ATTENTIONS)
        given = [one for one in self.methods if one != type(one)()]
        given.sort(key=lambda one: type(one).__qualname__ + type(one).__module__)
        object.__setattr__(self, "methods", tuple(given))

    def of(self, kind: type[Options]) -> Options:
        """The options of one method: as given, or its defaults."""
        return next((one for one in self.methods if isinstance(one, kind)), None) or kind()

    def with_options(self, *changed: MethodOptions) -> "GraphOptions":
        """A copy with other options of some methods."""
        kinds = {type(one) for one in changed}
        return replace(
            self, methods=(*(one for one in self.methods if type(one) not in kinds), *changed)
        )

    def require_target(self, target: Target) -> None:
        """Raise UserError for what a method's options ask of the target in vain."""
        for one in self.methods:
            one.require_target(target)

    def require_model(self, model: ModelFacts) -> None:
        """Raise UserError for options of a method that do not suit the model."""
        for one in self.methods:
            one.require_model(model)

    def require_chunk(self, prefill_chunk: int, L_max: int) -> None:
        """Raise UserError for options of a method that do not suit the prefill chunk."""
        for one in self.methods:
            one.require_chunk(prefill_chunk, L_max)

    @property
    def attends_valid(self) -> bool:
        return self.decode_attention == "valid"

    def recorded(self) -> "GraphOptions":
        """A copy with what a manifest records of the methods' options."""
        return replace(self, methods=tuple(one.recorded() for one in self.methods))

    def of_full_cache(self) -> "GraphOptions":
        """A copy for the full cache, which has only one form."""
        return replace(
            self,
            cache_dtype=None,
            prompt_cache_dtype=None,
            decode_attention="all",
            methods=tuple(one for one in self.methods if one.on_full_cache),
        )

    def of_prompt_cache(self) -> "GraphOptions":
        """A copy for prefill's cache, which chunks are appended to."""
        return replace(self, cache_dtype=self.prompt_cache_dtype, decode_attention="all")


CORE_FIELDS = tuple(one.name for one in fields(GraphOptions) if one.name != "methods")
"""The fields of `GraphOptions` that are flags."""


def uneven_batch(ranks: int, batches: Collection[int]) -> int | None:
    """The first number of batch slots that ranks cannot share equally.

    batches: batch slots of each decode graph.
    """
    return next((count for count in batches if count % ranks), None)


def require_one_of(flag: str, value: str | None, allowed: tuple[str, ...]) -> None:
    """Raise UserError for a value that is neither None nor allowed."""
    if value not in (None, *allowed):
        raise UserError(
            f"{flag} '{value}' is not known",
            f"{did_you_mean(closest(str(value), allowed))}choose from {', '.join(allowed)}",
        )
