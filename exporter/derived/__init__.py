"""Adds tensors to a checkpoint that graphs read and no file holds as such."""

from dataclasses import replace
from typing import TYPE_CHECKING

from snapexport.exporter.architectures import architecture_of
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.exporter.derived.experts import stacked_experts, unstacked_experts
from snapexport.exporter.derived.swapped_experts import swapped_back, swapped_experts
from snapexport.exporter.latent_attention import joined_up_projections, split_up_projections

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig


def with_derived(checkpoint: Checkpoint, config: "PretrainedConfig") -> Checkpoint:
    """The checkpoint with the tensors that the traces of its architecture need."""
    architecture, tensors = architecture_of(config), dict(checkpoint.tensors)
    if architecture.latent:
        tensors |= split_up_projections(checkpoint.tensors, config)
    if architecture.experts:
        stacks = swapped_experts if architecture.experts.swapped else stacked_experts
        tensors |= stacks(checkpoint.tensors)
    return replace(checkpoint, tensors=tensors)


def originals(stored: "dict[str, Tensor]", config: "PretrainedConfig") -> "dict[str, Tensor]":
    """A build's tensors, with those that the derived ones were made of."""
    architecture, found = architecture_of(config), dict(stored)
    if architecture.latent:
        found |= joined_up_projections(stored)
    if architecture.experts:
        stacks = swapped_back if architecture.experts.swapped else unstacked_experts
        found |= stacks(stored)
    return found
