"""Runs the checkpoint's own transformers model in fp32, the reference of every comparison.

Refuses a checkpoint that can't be the build's: every difference would mean nothing.
"""

import copy
import gc
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.exporter.model import Decoder, model_facts
from snapexport.exporter.model.models import (
    causal_language_model,
    leave_text,
    make_model,
    with_text_alone,
)
from snapexport.exporter.model.probe import load_decoder
from snapexport.exporter.quiet import quiet
from snapexport.exporter.read import local_path, open_checkpoint
from snapexport.exporter.read.checkpoint import QUANTIZATION, Checkpoint
from snapexport.exporter.read.folders import CONFIG
from snapexport.exporter.read.gguf.header import GgufHeader
from snapexport.exporter.weights import derived
from snapexport.exporter.weights.forms.parts import dequantize
from snapexport.measure.accuracy.layer_weights import Chosen, Tensors, read_by_layer
from snapexport.measure.accuracy.sequence import Array, SequenceRunner


class ReferenceRunner(SequenceRunner):
    """A transformers model with its own dynamic cache; keeps the logits of its continuations."""

    original = True

    def __init__(self, model: Any, decoder: Decoder) -> None:
        super().__init__("transformers", decoder.never_sampled)
        self._model = model
        self._logits: dict[tuple[int, ...], Array] = {}

    def activate_impl(self) -> None:
        """Do nothing: the logits are there already."""

    def release(self) -> None:
        """Drop the model, so that its memory is free for the graphs. Its logits are kept."""
        self._model = None
        gc.collect()

    @torch.no_grad()
    def continuation(self, prompt: list[int], tokens: int) -> list[int]:
        """The model's own greedy continuation, end-of-sequence tokens included."""
        chosen: list[int] = []
        out = self._model(torch.tensor([prompt]), logits_to_keep=1)
        rows = [out.logits[0, -1]]
        while len(chosen) < tokens:
            rows[-1][self.never_sampled] = -torch.inf
            chosen.append(int(rows[-1].argmax()))
            out = self._model(torch.tensor([chosen[-1:]]), past_key_values=out.past_key_values)
            rows.append(out.logits[0, -1])
        # This is the sequence that is compared: the model need not run it again.
        self._logits[*prompt, *chosen] = torch.stack(rows).float().numpy()
        return chosen

    def logits(self, token_ids: Array, prompt_length: int) -> Array:
        """The logits [1 + N, V] from when the continuation was made."""
        logits = self._logits[tuple(token_ids.tolist())]
        assert len(logits) == 1 + len(token_ids) - prompt_length
        return logits


_SIXTEEN_BITS = {"F16": torch.float16, "BF16": torch.bfloat16}
"""safetensors' names."""

_SAME = (
    *("vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "value_head_dim", "kv_lora_rank", "cache_of", "attention_chunk_size"),
)
"""Facts of the manifest that a config.json has to agree with."""


def reference_model(build: Build, checkpoint: str | None) -> tuple[Any, Decoder]:
    """The model of `checkpoint`, or of config and weights of the build itself. Raises UserError."""
    opened = _configs_of(build) if checkpoint is None else open_checkpoint(local_path(checkpoint))
    decoder = _matching_decoder(build, opened)
    own = checkpoint is None
    model = _own_model(build, opened, decoder) if own else _model_of(opened, decoder)
    return causal_language_model(model), decoder


def _model_of(checkpoint: Checkpoint, decoder: Decoder) -> Any:
    if checkpoint.gguf:
        return _gguf_model(checkpoint.gguf, decoder)
    try:
        return _loaded(checkpoint, decoder)
    except (ImportError, RuntimeError, ValueError) as error:
        if checkpoint.config.get(QUANTIZATION) is not None:
            raise UserError(
                f"transformers cannot read the quantized checkpoint {checkpoint.directory}: "
                f"{' '.join(str(error).split())!s:.200}",
                "leave out --model, which compares with the build's own weights, or install the "
                "package that transformers needs",
            ) from None
        if isinstance(error, RuntimeError):  # shapes: everything else was checked before
            raise UserError(
                f"the weights of {checkpoint.directory} don't fit its {CONFIG}",
                "download the checkpoint again: the file is damaged or incomplete",
            ) from None
        raise


def _loaded(checkpoint: Checkpoint, decoder: Decoder) -> Any:
    """transformers' own model of the files: 16 bits stay where they are, and a layer is widened
    when it runs."""
    kinds = {
        _SIXTEEN_BITS.get(tensor.dtype, torch.float32) for tensor in checkpoint.tensors.values()
    }
    dtype = kinds.pop() if len(kinds) == 1 else torch.float32
    given = _from_files(checkpoint, decoder, dtype).eval()
    if dtype == torch.float32:
        return given
    stored = given.state_dict()
    model = make_model(decoder.config, decoder.whole, dtype=torch.float32).eval()

    def read(chosen: Chosen) -> Tensors:
        return {name: one.float() for name, one in stored.items() if chosen(name)}

    read_by_layer(model, decoder.names.layers, read)
    return model


def _from_files(checkpoint: Checkpoint, decoder: Decoder, dtype: torch.dtype) -> Any:
    """What transformers loads, of a vision-language checkpoint the language model."""
    if decoder.whole is None:
        return _complete(AutoModelForCausalLM, checkpoint, decoder.config, dtype)
    whole = copy.deepcopy(decoder.whole)
    whole.text_config = decoder.config
    model = with_text_alone(
        decoder.config, lambda: _complete(AutoModelForImageTextToText, checkpoint, whole, dtype)
    )
    leave_text(model)
    return model


def _complete(auto: Any, checkpoint: Checkpoint, config: Any, dtype: torch.dtype) -> Any:
    """The model, of which no weight is missing: transformers would make it random."""
    model, found = auto.from_pretrained(
        checkpoint.directory, config=config, dtype=dtype, output_loading_info=True
    )
    if missing := sorted(found["missing_keys"]):
        raise UserError(
            f"transformers finds no weights for {missing[0]} in {checkpoint.directory}",
            "leave out --model, which compares with the build's own weights",
        )
    return model


def _gguf_model(header: GgufHeader, decoder: Decoder) -> Any:
    """The model with the tensors that transformers itself reads from a GGUF file."""
    if header.is_split:
        raise UserError(
            f"transformers does not read {header.file}, which is split into parts",
            "leave out --model, which compares with the build's own weights, or join the parts: "
            "`llama-gguf-split --merge FIRST-PART.gguf WHOLE.gguf`",
        )
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    # from_pretrained would do the same, and ask for `accelerate`.
    model = make_model(decoder.config, dtype=torch.float32).eval()
    with quiet():
        read = load_gguf_checkpoint(header.file, return_tensors=True, model_to_load=model)
    model.load_state_dict(read["tensors"], strict=False, assign=True)
    model.tie_weights()
    return model


def _configs_of(build: Build) -> Checkpoint:
    if not (build.directory / CONFIG).is_file():
        raise UserError(
            f"{build.directory} has no {CONFIG}, which transformers needs",
            "pass the checkpoint that was built as --model",
        )
    return Checkpoint.of_configs(build.directory, tensors={})


def _own_model(build: Build, configs: Checkpoint, decoder: Decoder) -> Any:
    model = make_model(decoder.config, decoder.whole, dtype=torch.float32).eval()
    opened: Any = safe_open  # without types
    files = [opened(build.directory / one.file, "pt") for one in build.manifest.weights]
    stored = {name: file for file in files for name in file.keys()}  # noqa: SIM118 (no mapping)
    columns = {n: one.shape[-1] for n, one in model.state_dict().items() if one.ndim == 2}

    def read(chosen: Chosen) -> Tensors:
        some = {name: file.get_tensor(name) for name, file in stored.items() if chosen(name)}
        whole = dequantize(some, configs.config)
        return derived.originals(_without_padding(whole, columns), decoder)

    read_by_layer(model, decoder.names.layers, read)
    return model


def _without_padding(tensors: Tensors, columns: Mapping[str, int]) -> Tensors:
    """Matrices with as many columns as the model's."""
    return {n: one[..., : columns.get(n)] if one.ndim == 2 else one for n, one in tensors.items()}


def _matching_decoder(build: Build, checkpoint: Checkpoint) -> Decoder:
    built = build.manifest.model
    length = build.manifest.geometry.L_max if built.longrope else None
    decoder = load_decoder(checkpoint, longrope_for=length)
    _require_same(checkpoint, "architecture", decoder.family.name, built.architecture)
    facts = model_facts(decoder, checkpoint)
    for name in _SAME:
        _require_same(checkpoint, name, getattr(facts, name), getattr(built, name))
    return decoder


def _require_same(checkpoint: Checkpoint, name: str, value: object, built: object) -> None:
    if value != built:
        raise UserError(
            f"{checkpoint.source} is not the model that was built: its {name} is {value}, "
            f"the build's is {built}",
            "pass the checkpoint that was built as --model",
        )
