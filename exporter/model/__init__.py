"""transformers' model of a checkpoint's decoder: its config, what was seen in it, and its skeleton.

`probe/` looks at the model, and `decoder.py` holds what it saw. No code names an architecture but
`exporter/read/families.py`, which holds what can't be seen.
"""

from snapexport.exporter.model.config import model_facts, require_readable
from snapexport.exporter.model.decoder import (
    Decoder,
    ExpertForm,
    ExpertSizes,
    Layer,
    Names,
    RMSNorm,
    Rope,
)

__all__ = [
    "Decoder",
    "ExpertForm",
    "ExpertSizes",
    "Layer",
    "Names",
    "RMSNorm",
    "Rope",
    "model_facts",
    "require_readable",
]
