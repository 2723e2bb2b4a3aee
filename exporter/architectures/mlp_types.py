"""Tells which layers of a model have experts, and which have one MLP. Names no architecture."""

from typing import TYPE_CHECKING

from snapexport.exporter.architectures.registry import architecture_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig

DENSE, EXPERTS = "dense", "experts"


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
