"""Checks the sizes of further prefill graphs, whose caches have fewer positions."""

from snapexport.builder.options import BuildOptions
from snapexport.contract.geometry import too_small
from snapexport.errors import UserError


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
