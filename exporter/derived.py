"""Adds tensors to a checkpoint that graphs read and no file holds as such."""

from dataclasses import replace
from typing import TYPE_CHECKING

from snapexport.exporter.architectures import architecture_of
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.exporter.latent_attention import joined_up_projections, split_up_projections

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig


def with_derived(checkpoint: Checkpoint, config: "PretrainedConfig") -> Checkpoint:
    """The checkpoint with the tensors that the traces of its architecture need."""
    if not architecture_of(config).latent:
        return checkpoint
    split = split_up_projections(checkpoint.tensors, config)
    return replace(checkpoint, tensors={**checkpoint.tensors, **split})


def originals(stored: "dict[str, Tensor]", config: "PretrainedConfig") -> "dict[str, Tensor]":
    """A build's tensors, with those that the derived ones were made of."""
    if not architecture_of(config).latent:
        return stored
    return stored | joined_up_projections(stored)
