"""Makes a decoder small: it slides over few positions and knows few tokens."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from snapexport.exporter.model import Decoder

_SEED = 0
_OF_VOCABULARY, _TOKEN = "vocab_size", "_token_id"


def in_short_windows(decoder: Decoder, window: int) -> Decoder:
    """The decoder with windows and chunks of `window` positions, where they are wider.

    In the config too, from which transformers makes its masks. A width that the config has by
    another name stays as it is.
    """
    config: Any = decoder.config
    fields = {"window": "sliding_window", "chunk": "attention_chunk_size"}
    layers = list(decoder.layers)
    for ours, theirs in fields.items():
        width = getattr(config, theirs, None)
        is_seen = any(getattr(layer, ours) == width for layer in layers)
        if is_seen and type(width) is int and width > window:
            setattr(config, theirs, window)
            narrow: dict[str, Any] = {ours: window}
            layers = [
                replace(layer, **narrow) if getattr(layer, ours) == width else layer
                for layer in layers
            ]
    return replace(decoder, layers=tuple(layers))


def picked_tokens(config: Any, count: int) -> tuple[int, ...]:
    """Some token ids of a config's vocabulary, ascending; none if it has so few."""
    known = min(_sizes(config).values())
    if known <= count:
        return ()
    found = np.random.default_rng(_SEED).choice(known, count, replace=False)
    return tuple(sorted(found.tolist()))


def with_few_tokens(decoder: Decoder, count: int) -> Decoder:
    """The decoder with a vocabulary of `count` tokens, and none with a meaning of its own."""
    config: Any = decoder.config
    for name, size in _sizes(config).items():
        setattr(config, name, min(size, count))
    for name, value in list(vars(config).items()):
        if name.endswith(_TOKEN) and value is not None:
            setattr(config, name, 0 if type(value) is int else [0])  # some take no None
    return decoder


def _sizes(config: Any) -> Mapping[str, int]:
    """Its vocabularies: some models have a further one, for what they add in each layer."""
    fields = vars(config).items()
    return {n: v for n, v in fields if n.startswith(_OF_VOCABULARY) and type(v) is int}
