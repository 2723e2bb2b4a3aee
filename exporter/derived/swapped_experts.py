"""Swaps the last two axes of gpt-oss's stacks of experts.

transformers has them as [E,H,2I] and [E,I,H], the graphs as [E,2I,H] and [E,H,I]. Gates and ups lie
in turn in both.
"""

from collections.abc import Mapping

import torch

from snapexport.exporter.derived.experts import WEIGHTS
from snapexport.exporter.moved_weights import swapped
from snapexport.exporter.tensor_file import Tensor


def swapped_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the experts' markers: stacks are swapped, biases are as stored."""
    return {
        name.removesuffix(stored) + ours: swapped(tensor) if len(tensor.shape) == 3 else tensor
        for name, tensor in tensors.items()
        for stored, ours in WEIGHTS.items()
        if name.endswith(f".experts.{stored}")
    }


def swapped_back(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """transformers' weights of the experts, of a build's."""
    return {
        name.removesuffix(ours) + stored: weight.mT if weight.ndim == 3 else weight
        for name, weight in weights.items()
        for stored, ours in WEIGHTS.items()
        if name.endswith(f".experts.{ours}")
    }
