"""What a decode step is told, written where a graph reads it."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from snapexport.contract import names
from snapexport.runtime.engine import Integers


def write_decode_inputs(
    arrays: Mapping[str, NDArray[Any]],
    input_ids: Integers,
    position_ids: Integers,
    prompt_length: Integers,
) -> None:
    """Each argument [n] to the first n slots of a graph's inputs; the others are idle."""
    given = {
        names.INPUT_IDS: input_ids[:, None],
        names.POSITION_IDS: position_ids[:, None],
        names.PROMPT_LENGTH: prompt_length,
    }
    for name, values in given.items():
        if name in arrays:  # the full cache's graph has no use for the prompt's length
            arrays[name][: len(values)] = values
            arrays[name][len(values) :] = 0
