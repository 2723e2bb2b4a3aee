"""The reference's weights: one layer's at a time, with the logits of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from snapexport.compare.model import read_by_layer, reference_model
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from tests.builds import build
from tests.exporter.weights.test_adapter import by_hand

TOKENS = torch.tensor([[5, 3, 9, 2, 7]])
SMALL: dict[str, Any] = {"L_max": 64, "kv_budget": 32, "batch": 1, "prefill_chunk": 16}


def layers_with_weights(model: Any) -> list[int]:
    layers = enumerate(model.model.layers)
    return [i for i, layer in layers if any(not one.is_meta for one in layer.parameters())]


def held_while_running(model: Any) -> list[list[int]]:
    """The layers that have weights while each one runs, and after the run."""
    held: list[list[int]] = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda *_: held.append(layers_with_weights(model)))
    with torch.no_grad():
        model(TOKENS)
    return [*held, layers_with_weights(model)]


@pytest.mark.parametrize("own", [True, False], ids=["build", "checkpoint"])
def test_a_layer_of_the_reference_has_its_weights_while_it_runs(
    own: bool, checkpoint: Path, tmp_path: Path
) -> None:
    source = tmp_path / "16"
    expected = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float16)
    expected.save_pretrained(source)
    built = build(source, tmp_path / "b", dtype="fp16", **SMALL)
    model, _ = reference_model(built, None if own else str(source))
    assert layers_with_weights(model) == []
    with torch.no_grad():
        assert torch.equal(model(TOKENS).logits, expected.float()(TOKENS).logits)
    count = len(model.model.layers)
    assert held_while_running(model) == [*([index] for index in range(count)), []]


def test_a_weight_that_is_not_there_is_an_error_and_not_a_random_number(tiny_build: Build) -> None:
    model, _ = reference_model(tiny_build, None)
    read_by_layer(model, "model.layers", lambda chosen: {})
    with pytest.raises(UserError, match=r"does not hold model\.layers\.0\..* as the model has it"):
        model(TOKENS)


def test_a_build_with_an_adapter_is_compared_with_its_base_and_that(
    checkpoint: Path, tmp_path: Path
) -> None:
    name, adapter = "model.layers.1.self_attn.q_proj", str(tmp_path / "tuned")
    (product,) = by_hand(checkpoint, tmp_path / "tuned", {name: (64, 64)}).values()
    expected = AutoModelForCausalLM.from_pretrained(checkpoint)
    expected.get_submodule(name).weight.data += torch.tensor(product)
    built = build(checkpoint, tmp_path / "b", adapter=tmp_path / "tuned", verify=True, **SMALL)
    assert built.manifest.adapter and built.manifest.adapter.name == "tuned"
    for given in ((None, None), (str(checkpoint), adapter)):
        model, _ = reference_model(built, *given)
        with torch.no_grad():
            logits = model(TOKENS).logits
            assert torch.allclose(logits, expected(TOKENS).logits, atol=1e-4)
    (tmp_path / "tuned/adapter_config.json").write_text('{"peft_type": "LORA", "r": 2}')
    for given, words in {
        (str(checkpoint), None): "the build has the adapter tuned in its weights",
        (None, adapter): "the build's own weights have it",
        (str(checkpoint), adapter): "is not the adapter that was built",
    }.items():
        with pytest.raises(UserError, match=words):
            reference_model(built, *given)
