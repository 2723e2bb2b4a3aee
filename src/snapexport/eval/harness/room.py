"""What fits into a build: prompts are cut from the left, and that is said once for all of them.

Knows lengths alone, no text.
"""

import logging
from collections.abc import Sequence

from snapexport.contract.errors import UserError
from snapexport.runtime.executor import Limits

log = logging.getLogger(__name__)


def fit(prompts: Sequence[list[int]], new_tokens: Sequence[int], limits: Limits) -> list[list[int]]:
    """Each prompt's last tokens, as many as leave room for its new ones. Raises UserError.

    From the left, a beginning-of-sequence token included, as the harness does for transformers.
    """
    fitting = [
        prompt[-_room(count, limits) :] for prompt, count in zip(prompts, new_tokens, strict=True)
    ]
    lost = [len(whole) - len(cut) for whole, cut in zip(prompts, fitting, strict=True)]
    if any(lost):
        log.warning(
            "%d of %d prompts are longer than the build takes: the first tokens of each were cut, "
            "%d at the most",
            sum(map(bool, lost)),
            len(lost),
            max(lost),
        )
    return fitting


def _room(new_tokens: int, limits: Limits) -> int:
    room = min(limits.longest_prompt, limits.positions - new_tokens)
    if room < 1:
        raise UserError(
            f"{new_tokens} tokens after the prompt do not fit into {limits.positions} positions",
            "lower max_gen_toks, or build again with a larger --L-max",
        )
    return room
