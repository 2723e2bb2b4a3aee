"""Tells which layers of a model have experts, and which have one MLP. Names no architecture."""

from typing import TYPE_CHECKING, NamedTuple

from snapexport.exporter.architectures.fields import number_of_experts
from snapexport.exporter.architectures.registry import architecture_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig

DENSE, EXPERTS = "dense", "experts"


class ExpertSizes(NamedTuple):
    """Experts of a layer, how many of them a token chooses, and the width of one (I)."""

    experts: int
    chosen: int
    width: int


def experts_of(config: "PretrainedConfig") -> ExpertSizes | None:
    """The sizes of a model's experts."""
    count = number_of_experts(config)
    if architecture_of(config).experts is None or count is None:
        return None
    width = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    return ExpertSizes(count, config.num_experts_per_tok, width)


def mlp_types(config: "PretrainedConfig") -> list[str]:
    """Each layer's type of MLP."""
    experts = architecture_of(config).experts
    layers = range(config.num_hidden_layers)
    if experts is None:
        return [DENSE for _ in layers]
    if experts.dense == "first_k_dense_replace":
        return [DENSE if layer < config.first_k_dense_replace else EXPERTS for layer in layers]
    if experts.dense == "mlp_only_layers":
        return [DENSE if _is_left_out(config, layer) else EXPERTS for layer in layers]
    return [EXPERTS for _ in layers]


def _is_left_out(config: "PretrainedConfig", layer: int) -> bool:
    step = config.decoder_sparse_step
    return layer in config.mlp_only_layers or (layer + 1) % step > 0


def with_mlp_types(config: "PretrainedConfig", types: list[str]) -> None:
    """Change a config so that its layers have these types. Dense ones come first if they must."""
    experts = architecture_of(config).experts
    dense = [layer for layer, kind in enumerate(types) if kind == DENSE]
    if experts is not None and experts.dense == "first_k_dense_replace":
        assert dense == list(range(len(dense))), types
        config.first_k_dense_replace = len(dense)
    elif experts is not None and experts.dense == "mlp_only_layers":
        config.mlp_only_layers, config.decoder_sparse_step = dense, 1
