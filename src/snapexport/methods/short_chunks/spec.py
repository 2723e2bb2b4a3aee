"""Says which chunks may be shorter than the prefill chunk."""

from dataclasses import dataclass

from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.graph_options import GraphOptions, MethodOptions, option
from snapexport.contract.rule import SINGLE_SHOT, Choice, Rule, flag, value
from snapexport.errors import UserError
from snapexport.methods.method import Method
from snapexport.methods.sparse_prefill.spec import CHOICE as SPARSE

USUAL = 32
"""A further chunk for the turns that a build with --extend is for."""


@dataclass(frozen=True, kw_only=True)
class ShortChunkOptions(MethodOptions):
    """short_chunks: tokens of the shorter chunks; 0: none; None: `USUAL` where that pays.

    The manifest has them in the names of graphs.
    """

    short_chunks: tuple[int, ...] | None = option(
        None,
        "tokens of shorter prefill steps, for turns and a prompt's rest; 0: none (default: "
        f"{USUAL} with --extend where graphs need no copy of the weights)",
        metavar="TOKENS",
        recorded=False,
    )


def short_chunks(
    options: GraphOptions, geometry: CacheGeometry, chunk: int, copies_weights: bool
) -> list[int]:
    """Tokens of the chunks that are shorter than `chunk`. Raises UserError.

    A prompt's last chunk has the queries that vote.
    """
    given = options.of(ShortChunkOptions).short_chunks
    least = geometry.vote.L_obs if geometry.compresses else 1
    if given is None:
        pays = not copies_weights and least <= USUAL <= chunk // 2
        return [USUAL] if pays and _takes_turns(options, geometry, chunk) else []
    wanted = [tokens for tokens in given if tokens]
    if found := [tokens for tokens in sorted(wanted) if not least <= tokens < chunk]:
        inside = f"{least} to {chunk - 1}" if least < chunk else "a larger --prefill-chunk"
        raise UserError(
            f"--short-chunks {found[0]} has to be below the prefill chunk, {chunk}, and at least "
            f"the vote's window, {least}",
            f"use {inside}, or 0 for none",
        )
    return wanted


def _takes_turns(options: GraphOptions, geometry: CacheGeometry, chunk: int) -> bool:
    """Whether a build takes turns, and nothing excludes shorter chunks."""
    flags = {name: value for one in options.methods for name, value in vars(one).items()}
    facts = {**geometry.chunk_facts(chunk), **flags, "short_chunks": (USUAL,)}
    return bool(flags.get("extend")) and not any(rule.is_broken(facts) for rule in _RULES)


_CHOICE = Choice(
    "--short-chunks", {"short_chunks": (32,)}, lambda f: any(f.get("short_chunks") or ())
)
_RULES = (
    Rule(
        _CHOICE,
        SINGLE_SHOT,
        "a single shot is padded to L_max",
        "leave it out, or use a smaller --prefill-chunk",
    ),
    Rule(_CHOICE, flag("mtp"), "its drafter reads the hidden states of whole chunks"),
    Rule(_CHOICE, SPARSE, "a prompt's last whole chunk attends to everything"),
    Rule(_CHOICE, value("vote_queries", "repeat"), "all tokens of a prefill chunk vote"),
)

SHORT_CHUNKS = Method(
    name="short_chunks",
    home=__package__,
    is_on=lambda geometry, options: True,  # the names of graphs say which there are
    options=ShortChunkOptions,
    chunks=short_chunks,
    rules=_RULES,
)
