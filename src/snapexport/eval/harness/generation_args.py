"""The harness's generation arguments, read into SamplingParams. What is not known is refused."""

import random
from collections.abc import Mapping
from typing import Any

from snapexport.contract.errors import UserError
from snapexport.runtime.requests import SamplingParams

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""The harness's names for one thing."""

KNOWN = ("until", *LENGTHS, "do_sample", "temperature", "top_p", "top_k", "seed", "num_beams")


def sampling_params(arguments: Mapping[str, Any], max_gen_toks: int) -> SamplingParams:
    """What one request asks for; `max_gen_toks` where it does not say. Raises UserError."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if unknown := sorted(given.keys() - set(KNOWN)):
        raise UserError(
            f"generation arguments are not known: {', '.join(unknown)}",
            f"use {', '.join(KNOWN)}",
        )
    if given.get("num_beams", 1) != 1:
        raise UserError(
            f"num_beams {given['num_beams']!r} asks for a beam search, which a build has not",
            "use num_beams 1",
        )
    sampling = {name: given[name] for name in ("top_p", "top_k", "seed") if name in given}
    temperature = _temperature(given)
    if temperature and "seed" not in given:
        # The harness's --seed sets this generator, so that its runs can be repeated.
        sampling["seed"] = random.getrandbits(32)
    return SamplingParams(
        max_tokens=_max_tokens(given, max_gen_toks),
        temperature=temperature,
        stop=_texts(given.get("until", ())),
        **sampling,
    )


def _temperature(given: Mapping[str, Any]) -> Any:
    """do_sample decides where it is there: tasks say `temperature: 1, do_sample: false`."""
    temperature = given.get("temperature", 1.0 if given.get("do_sample") else 0.0)
    return temperature if given.get("do_sample", True) else 0.0


def _max_tokens(given: Mapping[str, Any], default: int) -> Any:
    lengths = {name: given[name] for name in LENGTHS if name in given}
    if len(set(lengths.values())) > 1:
        raise UserError(
            f"the length is given more than once: {lengths}", f"give {next(iter(lengths))} alone"
        )
    return next(iter(lengths.values()), default)


def _texts(until: Any) -> Any:
    """An empty text, which some tasks have, ends nothing."""
    if isinstance(until, str):
        until = [until]
    return tuple(text for text in until if text != "") if isinstance(until, list | tuple) else until
