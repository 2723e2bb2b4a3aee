"""What a checkpoint's decoder is: transformers' config, and what was seen in its model.

`exporter/decoders.py` finds it, `exporter/probe/` looks at the model. No code names an architecture
but `families.py`, which holds what can't be seen.
"""

from snapexport.exporter.architectures.config import model_facts, require_readable
from snapexport.exporter.architectures.decoder import (
    Decoder,
    ExpertForm,
    ExpertSizes,
    Layer,
    Names,
    RMSNorm,
    Rope,
)
from snapexport.exporter.architectures.families import HELD, Family, InGguf, is_held

__all__ = [
    "HELD",
    "Decoder",
    "ExpertForm",
    "ExpertSizes",
    "Family",
    "InGguf",
    "Layer",
    "Names",
    "RMSNorm",
    "Rope",
    "is_held",
    "model_facts",
    "require_readable",
]
