"""Tensors by the names of transformers' model are those that transformers itself loads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from snapexport.exporter.model.probe import load_decoder
from snapexport.exporter.read import open_checkpoint
from snapexport.exporter.weights.arranged import Stack
from snapexport.exporter.weights.conversion import Converted, by_model_names
from snapexport.exporter.weights.shapes import require_tensors
from snapexport.exporter.weights.tensor_file import Tensor, blocks
from tests.oracle import checkpoints
from tests.oracle.families import FAMILIES, few_by_default


def whole(tensor: Tensor) -> np.ndarray:
    flat = np.concatenate([block.astype(np.float32) for block in blocks(tensor)])
    return flat.reshape(tensor.shape)


@pytest.mark.parametrize("name", few_by_default(FAMILIES))
def test_tensors_are_those_that_transformers_loads(name: str, tmp_path: Path) -> None:
    checkpoints.make(name, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    decoder = load_decoder(checkpoint)
    found = by_model_names(checkpoint, decoder)
    require_tensors(found, decoder)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    for parameter, expected in loaded.items():
        source = decoder.names.tied.get(parameter, parameter)
        assert np.array_equal(whole(found.tensors[source]), expected.numpy()), parameter


def test_matrices_of_experts_are_a_stack_that_is_read_one_by_one(tmp_path: Path) -> None:
    checkpoints.make("mixtral", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    found = by_model_names(checkpoint, load_decoder(checkpoint)).tensors
    stack = found["model.layers.0.mlp.experts.gate_up_proj"]
    assert isinstance(stack, Stack) and len(stack.parts) == 8
    assert not any(isinstance(tensor, Converted) for tensor in found.values())


def test_tensors_that_lack_a_part_keep_their_names(tmp_path: Path) -> None:
    checkpoints.make("mixtral", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    lost = next(name for name in checkpoint.tensors if ".experts.7.w1" in name)
    rest = {name: tensor for name, tensor in checkpoint.tensors.items() if name != lost}
    found = by_model_names(replace(checkpoint, tensors=rest), load_decoder(checkpoint)).tensors
    assert lost.replace("w1", "w3") in found
    assert "model.layers.0.mlp.experts.gate_up_proj" not in found
