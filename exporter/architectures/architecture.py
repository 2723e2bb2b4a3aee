"""The record of an architecture: every fact about it that the exporter asks for.

Knows nothing of checkpoints, torch or graphs. `families/` holds a record a file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Sliding = Literal["never", "by layer_types", "throughout"]
"""Which layers attend to the last `sliding_window` positions alone: none, those that the config's
`layer_types` names, or all of them where a window is set."""


@dataclass(frozen=True, kw_only=True)
class RMSNorm:
    """How the model's RMSNorm modules calculate.

    epsilon: name of the module's attribute. weight_offset: is added to the weight. in_fp32: the
    result is rounded to the model's dtype after the weight was applied, not before.
    """

    epsilon: str = "variance_epsilon"
    weight_offset: float = 0.0
    in_fp32: bool = False


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One decoder architecture that is verified against transformers.

    name: the class that config.json names. model_type: as transformers' config has it.
    rope_per_layer_type: `rope_parameters` holds a RoPE for each layer type, not a single one.
    scaled_embedding: the embedding multiplies its rows by a buffer, `embed_scale`.
    score_softcap, logit_softcap: the config's attributes that bound attention's scores and the
    logits; None: the architecture has none. embedding, head: the tensors' names in a checkpoint.
    tied: tensors that are another one where the config says `tie_word_embeddings`.
    """

    name: str
    model_type: str
    slides: Sliding = "never"
    rope_per_layer_type: bool = False
    norm: RMSNorm = RMSNorm()
    scaled_embedding: bool = False
    score_softcap: str | None = None
    logit_softcap: str | None = None
    embedding: str = "model.embed_tokens.weight"
    head: str = "lm_head.weight"
    tied: Mapping[str, str] = field(
        default_factory=lambda: {"lm_head.weight": "model.embed_tokens.weight"}
    )
