"""The record of an architecture: every fact about it that the exporter needs.

Does not know checkpoints, torch or graphs. `registry.py` holds the records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Sliding = Literal["never", "by layer_types", "throughout"]
"""Layers with a sliding window: none, those that the config's `layer_types` names, or all if the
config sets `sliding_window`."""

DenseLayers = Literal["none", "first_k_dense_replace", "mlp_only_layers"]
"""Layers with one MLP in a model with experts: none, as many at the beginning as the config says,
or those that the config lists and that `decoder_sparse_step` leaves out."""


@dataclass(frozen=True, kw_only=True)
class RMSNorm:
    """How the model's RMSNorm modules calculate.

    epsilon: name of the module's attribute. weight_offset: added to the weight. in_fp32: the
    weight is applied in fp32, before the result is rounded to the model's dtype.
    """

    epsilon: str = "variance_epsilon"
    weight_offset: float = 0.0
    in_fp32: bool = False


@dataclass(frozen=True, kw_only=True)
class InGguf:
    """How GGUF files have an architecture.

    name: in their metadata. only: {key of the metadata, without the name: the one value that is
    read}, for what transformers takes for given.
    """

    name: str
    only: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Experts:
    """How a model has experts (MoE) in the place of MLPs.

    router: the end of the name of a router's matrix, which is never quantized. grouped: routers
    choose groups of experts first, always or if the config's `topk_method` says so. swapped: stacks
    of experts are stored as [E,K,N], with gates and ups in turn (gpt-oss).
    """

    dense: DenseLayers = "none"
    router: str = ".gate.weight"
    grouped: Literal["never", "by topk_method", "always"] = "never"
    swapped: bool = False


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One decoder architecture that is verified against transformers.

    name: the class in config.json. model_type: of transformers' config.
    rope_per_layer_type: `rope_parameters` holds a RoPE for each layer type, not a single one.
    rope_by_pair: RoPE's cosines and sines come once for each pair, not for both of its channels.
    attention_sinks: each head has a learned score beside those of the keys.
    scaled_embedding: the embedding multiplies its rows by a buffer, `embed_scale`.
    score_softcap, logit_softcap: the config's attributes with the soft caps of attention's scores
    and of the logits; None: no soft cap. latent: multi-head latent attention (MLA).
    mtp: checkpoints may have a layer for multi-token prediction after the last one.
    experts: None if every layer has one MLP. quantized: methods of quantization in which
    checkpoints of the family are published and read.
    embedding, head: the tensors' names in a checkpoint.
    tied: tensor -> the tensor it equals if the config sets `tie_word_embeddings`. gguf: None if
    GGUF files don't have it under a name of its own.
    """

    name: str
    model_type: str
    slides: Sliding = "never"
    rope_per_layer_type: bool = False
    rope_by_pair: bool = False
    attention_sinks: bool = False
    norm: RMSNorm = RMSNorm()
    scaled_embedding: bool = False
    score_softcap: str | None = None
    logit_softcap: str | None = None
    latent: bool = False
    mtp: bool = False
    experts: Experts | None = None
    embedding: str = "model.embed_tokens.weight"
    head: str = "lm_head.weight"
    quantized: tuple[str, ...] = ()
    gguf: InGguf | None = None
    tied: Mapping[str, str] = field(
        default_factory=lambda: {"lm_head.weight": "model.embed_tokens.weight"}
    )
