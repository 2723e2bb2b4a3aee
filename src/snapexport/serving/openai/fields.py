"""Fields of the API that this server has not: refused by name, unless their value asks for nothing.

A key that is dropped in silence means an answer to another question than was asked.
"""

from collections.abc import Mapping
from typing import Any

from snapexport.serving.openai.errors import invalid

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    # Of other servers' own:
    "add_generation_prompt": (True,),
    "min_p": (0,),
    "min_tokens": (0,),
    "repetition_penalty": (1,),
    "skip_special_tokens": (True,),
    "use_beam_search": (False,),
}
"""Values with which a field changes nothing. Clients send them without having been asked to."""

LABELS = ("prompt_cache_key", "safety_identifier", "user")
"""Say who asks, not what: any value will do."""


def without_idle(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that ask for something; null is as good as absent. Raises ApiError."""
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name in NEUTRAL and value not in NEUTRAL[name]:
            allowed = " or ".join(map(repr, NEUTRAL[name]))
            raise invalid(
                f"{name} is not supported: leave it out ({allowed} will pass)",
                name,
                "unsupported_parameter",
            )
    return {name: value for name, value in given.items() if name not in (*NEUTRAL, *LABELS)}
