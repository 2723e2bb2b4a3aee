"""What a decode step is told, written where a graph reads it."""

from snapexport.contract import names
from snapexport.runtime.bound_graph import HostArrays
from snapexport.runtime.executor import Integers, Temperatures

_IDLE = {names.TEMPERATURE: 1}
"""What the slots behind those in use take, where that isn't 0."""


def write_decode_inputs(
    arrays: HostArrays,
    input_ids: Integers,
    position_ids: Integers,
    prompt_length: Integers,
    temperature: Temperatures | None = None,
) -> None:
    """Each argument [n] to the first n slots of a graph's inputs; the others are idle."""
    given = {
        names.INPUT_IDS: input_ids[:, None],
        names.POSITION_IDS: position_ids[:, None],
        names.PROMPT_LENGTH: prompt_length,
        names.TEMPERATURE: 1 if temperature is None else temperature,
    }
    for name, values in given.items():
        if name in arrays:  # a graph may have no use for the prompt's length, or the temperature
            arrays[name][: len(input_ids)] = values
            arrays[name][len(input_ids) :] = _IDLE.get(name, 0)
