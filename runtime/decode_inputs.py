"""Writes a decode step's inputs to the arrays that a decode graph reads."""

import numpy as np
from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.runtime.bound_graph import HostArrays

Integers = NDArray[np.int64]
Temperatures = NDArray[np.float32]

_IDLE = {names.TEMPERATURE: 1}
"""Values for the batch slots behind those in use, where they aren't 0."""


def write_decode_inputs(
    arrays: HostArrays,
    input_ids: Integers,
    position_ids: Integers,
    prompt_length: Integers,
    temperature: Temperatures | None = None,
) -> None:
    """Write each argument [n] to the first n batch slots; the others are idle."""
    given = {
        names.INPUT_IDS: input_ids[:, None],
        names.POSITION_IDS: position_ids[:, None],
        names.PROMPT_LENGTH: prompt_length,
        names.TEMPERATURE: 1 if temperature is None else temperature,
    }
    for name, values in given.items():
        if name in arrays:  # a graph may not use the prompt's length, or the temperature
            arrays[name][: len(input_ids)] = values
            arrays[name][len(input_ids) :] = _IDLE.get(name, 0)
