"""Finds where the row of a chat's prompt is parked, so that the next turn's prompt begins with it.

A generation prompt may be more than the beginning of the answer in the next turn's history: some
templates open or close a block of reasoning there. The text before it is in both. Knows no
template's words.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from snapexport.errors import UserError
from snapexport.runtime.chat.end_token import TALK, Template


def is_before_generation_prompt(template: Template, options: Mapping[str, Any]) -> bool:
    """Whether the next turn's prompt begins with this one's without its generation prompt alone."""
    try:
        next_turn = template.render(TALK, True, options)
        this = template.render(TALK[:1], True, options)
        before = template.render(TALK[:1], False, options, True)
    except UserError:
        return False
    return not next_turn.startswith(this) and next_turn.startswith(before)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
