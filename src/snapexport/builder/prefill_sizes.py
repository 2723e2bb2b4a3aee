"""Chooses the sizes of further prefill graphs: shorter chunks, and caches of fewer positions."""

from snapexport.builder.options import BuildOptions
from snapexport.contract.geometry import CacheGeometry, too_small
from snapexport.errors import UserError

SHORT_CHUNK = 32
"""A further chunk for the turns that a build with --extend is for."""


def given_short_chunks(options: BuildOptions) -> list[int]:
    """Return the tokens of --short-chunks, ascending. 0 means none."""
    return sorted(set(options.short_chunks or ()) - {0})


def short_chunks(options: BuildOptions, geometry: CacheGeometry, chunk: int) -> list[int]:
    """Tokens of the chunks that are shorter than `chunk`, ascending. Raises UserError.

    A prompt's last chunk has the queries that vote.
    """
    least = geometry.vote.L_obs if geometry.compresses else 1
    if options.short_chunks is None:
        graph, copies = options.graph, options.copies_weights or options.holds_integers
        excluded = graph.mtp or graph.prefill_budget or geometry.is_single_shot(chunk)
        pays = graph.extend and not copies and least <= SHORT_CHUNK <= chunk // 2
        return [SHORT_CHUNK] if pays and not excluded else []
    given = given_short_chunks(options)
    if found := [tokens for tokens in given if not least <= tokens < chunk]:
        inside = f"{least} to {chunk - 1}" if least < chunk else "a larger --prefill-chunk"
        raise UserError(
            f"--short-chunks {found[0]} has to be below the prefill chunk, {chunk}, and at least "
            f"the vote's window, {least}",
            f"use {inside}, or 0 for none",
        )
    return given


def capacities(options: BuildOptions, chunk: int) -> list[int]:
    """Positions of the caches of further prefill graphs, ascending. Raises UserError.

    Each is at least twice the one before, so that moving to a larger one is rare and cheap.
    """
    given = sorted(set(options.prefill_capacities))
    if given and chunk == options.L_max:
        raise UserError(
            "--prefill-capacities is for prefill in chunks, but the prefill chunk is L_max",
            "leave it out, or use a smaller --prefill-chunk",
        )
    if found := too_small(given, chunk, options.L_max):
        capacity, least = found
        raise UserError(
            f"--prefill-capacities {' '.join(map(str, given))}: {capacity} is below {least}",
            f"begin at {chunk} (the prefill chunk) or above, at least double from one to the "
            f"next, and end at {options.L_max // 2} (half of --L-max) or below",
        )
    return given
