"""The object `verified` of manifest.json: what a build compared with transformers beforehand."""

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from snapexport.contract.engines import Strict, Word
from snapexport.contract.targets import Target


class Verified(Strict):
    """What self-verification compared of a small decoder: some of the checkpoint's layers.

    layers: their indices. miniature: the decoder had small sizes and random weights, since the
    checkpoint's own layers are too large. target: that the graphs were made for. tokens: of the
    prompt. chunks: that prefill took it in. decode_steps: after it, with the full cache.
    kept_positions: that the vote chose, of all layers and KV heads. far_position: of the token that
    was decoded with the compressed cache. largest_difference: of logits, as a share of the
    reference's standard deviation.
    """

    transformers: Word
    target: Target
    layers: list[NonNegativeInt]
    miniature: bool
    tokens: PositiveInt
    chunks: PositiveInt
    decode_steps: PositiveInt
    kept_positions: NonNegativeInt
    far_position: PositiveInt
    largest_difference: NonNegativeFloat
