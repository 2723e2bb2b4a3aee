"""Adds tensors to a checkpoint that graphs read and no file holds as such."""

from dataclasses import replace
from typing import TYPE_CHECKING

from snapexport.exporter.architectures import Decoder
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.exporter.derived.experts import stacked_experts, unstacked_experts
from snapexport.exporter.latent_attention import joined_up_projections, split_up_projections

if TYPE_CHECKING:
    from torch import Tensor


def with_derived(checkpoint: Checkpoint, decoder: Decoder) -> Checkpoint:
    """The checkpoint with the tensors that the decoder's traces need."""
    tensors = dict(checkpoint.tensors)
    if decoder.latent:
        tensors |= split_up_projections(checkpoint.tensors, decoder.config)
    if decoder.expert_form:
        tensors |= stacked_experts(checkpoint.tensors, decoder.expert_form)
    return replace(checkpoint, tensors=tensors)


def originals(stored: "dict[str, Tensor]", decoder: Decoder) -> "dict[str, Tensor]":
    """A build's tensors, with those that the derived ones were made of."""
    found = dict(stored)
    if decoder.latent:
        found |= joined_up_projections(stored)
    if decoder.expert_form:
        found |= unstacked_experts(stored, decoder.expert_form)
    return found
