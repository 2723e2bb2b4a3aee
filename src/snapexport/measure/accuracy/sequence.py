"""Defines the unit of comparison: a prompt and its continuation, forced on every runner.

Feed: input_ids int64 [1, L + N], prompt_length int64 [1]. Results: prefill.logits [1, V] of the
prompt's last token, decode.logits [N, V] after each token of the continuation. V: those of the
vocabulary that the build samples.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata

INPUT_IDS = "input_ids"
PROMPT_LENGTH = "prompt_length"
PREFILL_LOGITS = "prefill.logits"
DECODE_LOGITS = "decode.logits"

Array = NDArray[Any]
Feed = dict[str, Array]


def feed(prompt: list[int], continuation: list[int]) -> Feed:
    """One sequence as Polygraphy takes it."""
    return {
        INPUT_IDS: np.array([prompt + continuation], np.int64),
        PROMPT_LENGTH: np.array([len(prompt)], np.int64),
    }


class SequenceRunner(BaseRunner):  # type: ignore[misc]
    """A Polygraphy runner over whole sequences: a subclass gives the logits [1 + N, V].

    never_sampled: tokens of media, whose logits a build replaces. They are not compared.
    """

    lossless = True
    """Whether it attends to every position of a sequence of any length."""

    rounds_cache = False
    """Whether keys and values lose digits when they are written to its cache."""

    rounds_prompt = False
    """The same of the cache of the prompt in prefill."""

    original = False
    """Whether its weights are the checkpoint's and not the build's."""

    def __init__(self, name: str, never_sampled: Sequence[int]) -> None:
        super().__init__(name=name)
        self.never_sampled = list(never_sampled)

    def is_sparse(self, prompt_length: int) -> bool:
        """Whether prefill of such a prompt leaves some of it out."""
        return False

    def logits(self, token_ids: Array, prompt_length: int) -> Array:
        """Logits [1 + N, V] of token_ids [L + N], from the prompt's last token on."""
        raise NotImplementedError

    def get_input_metadata_impl(self) -> TensorMetadata:
        """Names, types and shapes of a feed."""
        metadata = TensorMetadata()
        metadata.add(INPUT_IDS, np.int64, (1, -1))
        metadata.add(PROMPT_LENGTH, np.int64, (1,))
        return metadata

    def infer_impl(self, feed_dict: Feed) -> "OrderedDict[str, Array]":
        """Run one sequence."""
        started = time.perf_counter()
        logits = self.logits(feed_dict[INPUT_IDS][0], int(feed_dict[PROMPT_LENGTH][0]))
        self.inference_time = time.perf_counter() - started
        # Polygraphy takes contiguous arrays alone.
        logits = np.ascontiguousarray(np.delete(logits, self.never_sampled, axis=-1))
        return OrderedDict([(PREFILL_LOGITS, logits[:1]), (DECODE_LOGITS, logits[1:])])
