"""The reference: the checkpoint's own transformers model, in fp32, with its own cache."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from snapexport.accuracy.sequence import Array, SequenceRunner
from snapexport.contract.build_directory import Build
from snapexport.exporter import hub


def reference_model(build: Build, checkpoint: str | None) -> Any:
    """transformers' model of `checkpoint`, or of the weights that the build itself holds."""
    if checkpoint is not None:
        path = hub.resolve(checkpoint)
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    config = AutoConfig.from_pretrained(build.directory)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for file in build.manifest.weights:
        _load(model, build.directory / file.file)
    model.tie_weights()
    return model


def _load(model: Any, file: Path) -> None:
    tensors = {name: tensor.float() for name, tensor in load_file(file).items()}
    model.load_state_dict(tensors, strict=False, assign=True)


class ReferenceRunner(SequenceRunner):
    """transformers with its dynamic cache: prompt first, then token by token."""

    def __init__(self, model: Any) -> None:
        super().__init__(name="transformers")
        self.model = model

    def activate_impl(self) -> None:
        """Nothing: the model is loaded already."""

    @torch.no_grad()
    def logits(self, token_ids: Array, prompt_length: int) -> Array:
        """The model's logits [1 + N, V], with the continuation forced."""
        tokens = torch.from_numpy(token_ids)[None]
        out = self.model(tokens[:, :prompt_length], logits_to_keep=1)
        rows = [out.logits[0, -1]]
        for position in range(prompt_length, tokens.shape[1]):
            cache = out.past_key_values
            out = self.model(tokens[:, position : position + 1], past_key_values=cache)
            rows.append(out.logits[0, -1])
        return torch.stack(rows).float().numpy()

    @torch.no_grad()
    def continuation(self, prompt: list[int], tokens: int) -> list[int]:
        """The model's own greedy continuation, end-of-sequence tokens included."""
        out = self.model(torch.tensor([prompt]), logits_to_keep=1)
        chosen = [int(out.logits[0, -1].argmax())]
        while len(chosen) < tokens:
            step = torch.tensor([chosen[-1:]])
            out = self.model(step, past_key_values=out.past_key_values)
            chosen.append(int(out.logits[0, -1].argmax()))
        return chosen
