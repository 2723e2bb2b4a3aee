"""Loads transformers' own model, the reference of every comparison, in fp32.

Of a few layers for a small decoder; of a whole checkpoint, or of a build's own weights, a layer's
weights at a time: they are read when it runs, and dropped after it. Refuses a checkpoint that can't
be the build's, since every difference would mean nothing. Shares with our graphs no arithmetic,
but for how an adapter is merged.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from snapexport.compare.reference import IMPLEMENTATION
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.exporter.model import Decoder, model_facts
from snapexport.exporter.model.models import (
    causal_language_model,
    in_users_words,
    keep_layers,
    leave_text,
    make_model,
    path_of_decoder,
    with_text_alone,
)
from snapexport.exporter.model.probe import load_decoder
from snapexport.exporter.quiet import quiet, without_progress_bars
from snapexport.exporter.read import local_path, open_checkpoint
from snapexport.exporter.read.adapter import open_adapter
from snapexport.exporter.read.checkpoint import QUANTIZATION, Checkpoint
from snapexport.exporter.read.folders import CONFIG
from snapexport.exporter.read.gguf.header import GgufHeader
from snapexport.exporter.weights import derived
from snapexport.exporter.weights.adapter import with_adapter
from snapexport.exporter.weights.conversion import as_torch
from snapexport.exporter.weights.forms.parts import dequantize
from snapexport.exporter.weights.tensor_file import Tensor as Stored

Tensors = dict[str, Tensor]
Chosen = Callable[[str], bool]
ReadTensors = Callable[[Chosen], Tensors]
"""Reads the tensors whose names are chosen, as the model names and shapes them, in fp32."""

_THE_BUILT_ONE = "pass the checkpoint that was built as --model"
_SIXTEEN_BITS = {"F16": torch.float16, "BF16": torch.bfloat16}
"""safetensors' names."""

_SAME = (
    *("vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "value_head_dim", "kv_lora_rank", "cache_of", "attention_chunk_size"),
)
"""Facts of the manifest that a config.json has to agree with."""


def small_model(decoder: Decoder, tensors: Tensors, adapted: Tensors) -> Any:
    """The model of a decoder that is left with some layers. Raises UserError.

    tensors: by the names of a checkpoint, to be converted by transformers. adapted: those that an
    adapter changed, by the model's names.
    """
    eager = {"attn_implementation": IMPLEMENTATION, "experts_implementation": "eager"}
    model, report = _from_pretrained(decoder, None, torch.float32, state_dict=tensors, **eager)
    for what in ("missing_keys", "mismatched_keys"):
        if report[what]:
            raise UserError(
                f"transformers loads the checkpoint in another way: {what.replace('_', ' ')} "
                f"{sorted(map(str, report[what]))[:3]}",
                "this checkpoint cannot be built",
            )
    model.load_state_dict(adapted, strict=False)
    return _of_text(model, decoder)


def reference_model(
    build: Build, checkpoint: str | None, adapter: str | None = None
) -> tuple[Any, Decoder]:
    """The model of `checkpoint`, or of config and weights of the build itself. Raises UserError.

    adapter: the one that the build was made with, which the checkpoint does not have.
    """
    _require_adapter(build, checkpoint, adapter)
    if checkpoint is None:
        configs = _configs_of(build)
        decoder = _matching_decoder(build, configs)
        model = _own_model(build, configs, decoder)
        return causal_language_model(model, decoder.names), decoder
    opened = open_checkpoint(local_path(checkpoint))
    decoder = _matching_decoder(build, opened)
    if adapter is None:
        return causal_language_model(_model_of(opened, decoder), decoder.names), decoder
    merged = with_adapter(opened, decoder, open_adapter(adapter), partial(_decoder, build))
    if opened.config.get(QUANTIZATION) is not None:
        raise UserError(
            "diff --adapter does not take a quantized checkpoint",
            "leave out --model and --adapter, which compares with the build's own weights",
        )
    base = _model_of(opened, decoder, widened=False).state_dict()
    model = _by_layer(base, merged.decoder, merged.changed)
    return causal_language_model(model, merged.decoder.names), merged.decoder


def _require_adapter(build: Build, checkpoint: str | None, adapter: str | None) -> None:
    """Raise UserError for an adapter that is missing, another, or that nothing asks for."""
    built = build.manifest.adapter
    if adapter is None:
        if built is None or checkpoint is None:
            return
        raise UserError(
            f"the build has the adapter {built.name} in its weights, {checkpoint} has not",
            "add --adapter with its folder; or leave out --model, which compares with the build's "
            "own weights",
        )
    if built is None or checkpoint is None:
        why = "the build has none" if built is None else "the build's own weights have it"
        raise UserError(f"--adapter {adapter} has no part in this: {why}", "leave it out")
    if open_adapter(adapter).sha256 != built.sha256:
        raise UserError(
            f"{adapter} is not the adapter that was built, {built.name}",
            "its two files must be those that were built",
        )


def drop_quantization(config: Any) -> tuple[Any, Any]:
    """Let transformers read weights as floats. Returns the config, and its text's."""
    both = config, config.get_text_config(decoder=True)
    for one in both:
        if hasattr(one, QUANTIZATION):
            delattr(one, QUANTIZATION)
    return both


def _from_pretrained(
    decoder: Decoder, files: Path | None, dtype: torch.dtype, **given: Any
) -> tuple[Any, dict[str, Any]]:
    """The model by `from_pretrained` of its own class, and transformers' report.

    It is left with the decoder's layers and with what text needs. files: a checkpoint's, or None
    for a `state_dict` of floats.
    """
    with in_users_words(), torch.device("meta"):
        made = make_model(decoder.config, decoder.whole)
    usual, config, names = type(made), deepcopy(made.config), decoder.names
    if files is None:
        drop_quantization(config)

    def init(self: Any, config: Any) -> None:
        with_text_alone(decoder.config, lambda: usual.__init__(self, config))
        if decoder.whole:
            leave_text(self)
        keep_layers(self, names.decoder, names.layers, decoder.depth)

    few: Any = type(usual.__name__, (usual,), {"__init__": init, "__module__": usual.__module__})
    with quiet(), without_progress_bars():
        found: tuple[Any, dict[str, Any]] = few.from_pretrained(
            files, config=config, dtype=dtype, output_loading_info=True, **given
        )
    return found


@torch.no_grad()
def _of_text(model: Any, decoder: Decoder) -> Any:
    """The part that makes logits, or its text's class around its parts."""
    found = causal_language_model(model, decoder.names)
    try:
        with quiet():
            found(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=False)
    except Exception:  # of a part that was left out
        with torch.device("meta"):
            text = make_model(decoder.config)
        text.set_submodule(path_of_decoder(text), model.get_submodule(decoder.names.decoder))
        text.set_output_embeddings(model.get_submodule(decoder.names.head))
        return text.eval()
    return found


def _model_of(checkpoint: Checkpoint, decoder: Decoder, *, widened: bool = True) -> Any:
    """The model of a checkpoint. widened: to fp32, if the checkpoint has 16 bits."""
    if checkpoint.gguf:
        return _gguf_model(checkpoint.gguf, decoder)
    try:
        return _whole_model(checkpoint, decoder, widened)
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


def _whole_model(checkpoint: Checkpoint, decoder: Decoder, widened: bool) -> Any:
    """The model of all files. 16 bits stay where they are, and a layer is widened when it runs."""
    kinds = {
        _SIXTEEN_BITS.get(tensor.dtype, torch.float32) for tensor in checkpoint.tensors.values()
    }
    dtype = kinds.pop() if len(kinds) == 1 else torch.float32
    given, report = _from_pretrained(decoder, checkpoint.directory, dtype)
    if missing := sorted(report["missing_keys"]):  # transformers makes them random
        raise UserError(
            f"transformers finds no weights for {missing[0]} in {checkpoint.directory}",
            "leave out --model, which compares with the build's own weights",
        )
    if dtype == torch.float32 or not widened:
        return given
    return _by_layer(given.state_dict(), decoder, {})


def _by_layer(stored: Tensors, decoder: Decoder, changed: Mapping[str, Stored]) -> Any:
    """A model of which a layer is in fp32 when it runs. changed: tensors in the place of others."""
    model = make_model(decoder.config, decoder.whole, dtype=torch.float32).eval()

    def read(chosen: Chosen) -> Tensors:
        own = {name: decoder.names.tied.get(name, name) for name in stored if chosen(name)}
        return {
            name: as_torch(changed[source]).float() if source in changed else stored[name].float()
            for name, source in own.items()
        }

    read_by_layer(model, decoder.names.layers, read)
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
            f"{build.directory} has no {CONFIG}, which transformers needs", _THE_BUILT_ONE
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


def _decoder(build: Build, checkpoint: Checkpoint) -> Decoder:
    manifest = build.manifest
    length = manifest.geometry.L_max if manifest.model.longrope else None
    return load_decoder(checkpoint, longrope_for=length)


def _matching_decoder(build: Build, checkpoint: Checkpoint) -> Decoder:
    built, decoder = build.manifest.model, _decoder(build, checkpoint)
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
            _THE_BUILT_ONE,
        )


def read_by_layer(model: Any, layers: str, read: ReadTensors) -> None:
    """Read what the layers share, and each layer whenever it runs. layers: the path of their list.

    What belongs to no layer (embedding, head, last norm), or to several, is read once. Raises
    UserError for a weight of a layer that is not there, as a run may do.
    """
    own = {
        f"{layers}.{index}.": layer
        for index, layer in enumerate(model.get_submodule(layers))
        if _shares_nothing(layer, model)
    }
    prefixes = tuple(own)
    shared = read(lambda name: not name.startswith(prefixes))
    _require(
        (n for n in model.state_dict() if ".layers." in n and not n.startswith(prefixes)), shared
    )
    model.load_state_dict(shared, strict=False, assign=True)
    model.tie_weights()
    for prefix, layer in own.items():
        _read_when_run(layer, prefix, read)


def _read_when_run(layer: nn.Module, prefix: str, read: ReadTensors) -> None:
    names = [prefix + name for name in layer.state_dict()]
    nothing = {name: one.to("meta") for name, one in layer.named_parameters()}

    def take(*_: object) -> None:
        found = read(lambda name: name.startswith(prefix))
        _require(names, found)
        tensors = {name.removeprefix(prefix): tensor for name, tensor in found.items()}
        layer.load_state_dict(tensors, strict=False, assign=True)

    def drop(*_: object) -> None:
        layer.load_state_dict(nothing, strict=False, assign=True)

    drop()
    layer.register_forward_pre_hook(take)
    layer.register_forward_hook(drop)


def _shares_nothing(layer: nn.Module, model: nn.Module) -> bool:
    owners = Counter(id(one) for _, one in model.named_parameters(remove_duplicate=False))
    return all(owners[id(one)] == 1 for one in layer.parameters())


def _require(names: Iterable[str], found: Tensors) -> None:
    if missing := sorted(set(names) - set(found)):
        raise UserError(f"the build does not hold {missing[0]} as the model has it", _THE_BUILT_ONE)
