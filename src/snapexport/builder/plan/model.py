"""Reads a checkpoint's sizes from its config and headers."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.model_facts import ModelFacts
from snapexport.errors import UserError, needs_extra
from snapexport.exporter.read import local_path, open_checkpoint
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.read.folders import CONFIG, GGUF
from snapexport.files.dtypes import BY_FLAG, DTYPES, DType
from snapexport.files.safetensors import TensorSpan
from snapexport.methods import table

if TYPE_CHECKING:
    from snapexport.exporter.model import Decoder
    from snapexport.exporter.weights.forms.integers import Form

_STORED: dict[str, DType] = {BY_FLAG[dtype].safetensors: dtype for dtype in DTYPES}


_OF_EXPERTS = ".experts."
"""In the names of the tensors of experts that a router chooses."""
_WEIGHTS = (".safetensors", ".bin", GGUF)
_TAKEN_APART = "kv_b_proj.weight"
"""A matrix that a build stores as two, never in fp8 (exporter/weights/derived.py)."""


@dataclass(frozen=True, kw_only=True)
class PlannedExperts:
    """The experts (MoE) of `layers` layers: `chosen` of `count` for each token."""

    layers: int
    count: int
    chosen: int
    hidden_size: int
    width: int
    matrices: int = 3

    @property
    def elements(self) -> int:
        """Weights of one expert: gate, up and down, or up and down."""
        return self.matrices * self.hidden_size * self.width

    def used(self, tokens: int) -> float:
        """The expected number of a layer's experts that any of `tokens` tokens chooses.

        If routers chose at random: E (1 - (1 - k/E)^tokens). Real routers choose fewer.
        """
        return self.count * (1 - (1 - self.chosen / self.count) ** tokens)


@dataclass(frozen=True)
class PlannedFp8:
    """Weights that `--weights fp8` keeps: [N,K] of linear layers, and whether experts are such.

    names: of the linear layers, in the same order. width: elements of a row that share a scale.
    by_row: whether each row of all linear layers has one, and a compiler multiplies with the bytes.
    """

    linear: tuple[tuple[int, int], ...]
    experts: bool
    width: int
    names: tuple[str, ...] = ()
    by_row: bool = False


@dataclass(frozen=True, kw_only=True)
class PlannedForms:
    """Forms of weights that a value of `--weights` makes integers; None: of the build's dtype.

    linear: as in PlannedModel. embedding: where it is not the head.
    """

    linear: "tuple[Form | None, ...]"
    embedding: "Form | None"
    experts: "Form | None"


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """Facts of a checkpoint that determine its memory.

    linear: [N,K] of every linear layer but the experts', with the head even if it is tied to the
    embedding, as last one. names: of the others, in the same order. experts: None if every layer
    has one MLP. others: elements of norms and biases. softcapped: whether attention's scores are
    soft-capped. stored: the dtype of most bytes; bf16 for quantized ones. fp8: None if the
    checkpoint has no such weights. forms: by the values of `--weights` that make integers; without
    keep if the checkpoint has none. signed_forms: of targets with signed integers.
    """

    facts: ModelFacts
    hidden_size: int
    intermediate_size: int
    linear: tuple[tuple[int, int], ...]
    experts: PlannedExperts | None
    others: int
    tied: bool
    softcapped: bool
    stored: DType
    fp8: PlannedFp8 | None = None
    names: tuple[str, ...] = ()
    forms: Mapping[str, PlannedForms] = field(default_factory=dict)
    signed_forms: Mapping[str, PlannedForms] = field(default_factory=dict)

    @property
    def embedding(self) -> int:
        """Elements of the embedding table [V,E]."""
        return self.facts.vocab_size * self.hidden_size


def read_model(
    model: str, options: GraphOptions | None = None, *, longrope_for: int | None = None
) -> PlannedModel:
    """Read a checkpoint directory or Hub id. Raises UserError for models that `build` refuses.

    options: of the build, whose graphs may run layers after the model's last. longrope_for: as
    `load_decoder` takes it.
    """
    path = local_path(model)
    has_weights = _has_weights(path)
    checkpoint = open_checkpoint(path) if has_weights else _of_config(path, longrope_for)
    with needs_extra("build"):
        from snapexport.exporter.model import model_facts
        from snapexport.exporter.model.models import parameters as parameters_of
        from snapexport.exporter.model.probe import load_decoder
        from snapexport.exporter.weights import conversion, shapes
        from snapexport.exporter.weights.readers import read_quantization

        decoder = load_decoder(checkpoint, longrope_for=longrope_for)
        stored, checkpoint = checkpoint, conversion.by_model_names(checkpoint, decoder)
        if checkpoint.absent:
            shapes.require_tensors(checkpoint, decoder)
        further, layers = _further(options or GraphOptions(), checkpoint, decoder)
        parameters = parameters_of(decoder)
    config, tied = decoder.config, decoder.tied
    embedding_name, head_name = decoder.embedding, decoder.head
    _require_weights(checkpoint, (embedding_name,) if tied else (embedding_name, head_name))
    wanted = {
        name: span.shape
        for name, span in checkpoint.tensors.items()
        if (name in parameters or name in further) and _OF_EXPERTS not in name
    }
    # The head counts once, tied or not.
    embedding, head = wanted.pop(embedding_name), wanted.pop(head_name, ())
    matrices = {name: shape for name, shape in wanted.items() if len(shape) == 2}
    products = (*matrices, embedding_name if tied else head_name)
    linear = [(rows, columns) for rows, columns in matrices.values()]
    linear.append((embedding[0], embedding[1]) if tied else (head[0], head[1]))
    return PlannedModel(
        facts=model_facts(decoder, checkpoint),
        hidden_size=config.hidden_size,
        intermediate_size=_width(decoder, matrices),
        linear=tuple(linear),
        experts=_experts(decoder, layers),
        others=sum(shape[0] for shape in wanted.values() if len(shape) == 1),
        tied=tied,
        softcapped=any(layer.softcapped for layer in decoder.layers),
        stored="bf16" if read_quantization(checkpoint.config) else _mostly_stored(stored),
        fp8=_fp8(stored),
        names=tuple(matrices),
        forms=_forms(checkpoint, decoder, products, signed=False),
        signed_forms=_forms(checkpoint, decoder, products, signed=True),
    )


def _forms(
    checkpoint: Checkpoint, decoder: "Decoder", products: tuple[str, ...], *, signed: bool
) -> dict[str, PlannedForms]:
    from snapexport.exporter.trace.marking import SMALLEST_SIDE
    from snapexport.exporter.weights.forms import choice
    from snapexport.exporter.weights.forms.fp8 import Fp8Weight
    from snapexport.exporter.weights.forms.integers import IntegerWeight

    tensors = checkpoint.tensors
    flags = ["int8", "int4"]
    if any(isinstance(tensor, IntegerWeight) for tensor in tensors.values()):
        flags.append("keep")
    found = {}
    for flag in flags:
        chosen = choice.of_flag(flag, decoder, signed=signed)

        def form(name: str, chosen: choice.Choice = chosen) -> "Form | None":
            weight = chosen.of(name, tensors[name])
            assert not isinstance(weight, Fp8Weight)  # which no flag of these keeps
            return weight.form if weight and min(weight.shape[-2:]) >= SMALLEST_SIDE else None

        experts = next((name for name in tensors if _OF_EXPERTS in name), None)
        found[flag] = PlannedForms(
            linear=tuple(map(form, products)),
            embedding=form(decoder.embedding),
            experts=form(experts) if experts else None,
        )
    return found


def _further(
    options: GraphOptions, checkpoint: Checkpoint, decoder: "Decoder"
) -> tuple[set[str], int]:
    """The tensors of layers after the model's last that graphs run, and how many layers."""
    count = {method: method.further_layers(options) for method in table.METHODS}
    found = [method.part("export") for method, layers in count.items() if layers]
    tensors = {name for export in found for name in export.tensors(checkpoint, decoder)}
    return tensors, sum(count.values())


def _width(decoder: "Decoder", matrices: Mapping[str, tuple[int, ...]]) -> int:
    """The widest layer of an MLP, as config.json says, or else the longest side of a matrix."""
    said: Any = getattr(decoder.config, "intermediate_size", None)
    return said if isinstance(said, int) else max(map(max, matrices.values()))


def _has_weights(path: Path) -> bool:
    """Whether there is more than a config.json: `open_checkpoint` refuses other folders."""
    if not (path / CONFIG).is_file():
        return True
    return any(file for end in _WEIGHTS for file in path.glob(f"*{end}*"))


def _of_config(directory: Path, longrope_for: int | None) -> Checkpoint:
    """A config.json without weights, with the shapes of transformers' parameters."""
    with needs_extra("build"):
        from snapexport.exporter.model.models import parameters
        from snapexport.exporter.model.probe import load_decoder

    checkpoint = Checkpoint.of_configs(directory, {})
    decoder = load_decoder(checkpoint, longrope_for=longrope_for)
    tensors = {
        name: TensorSpan(directory, 0, 2 * prod(shape), "BF16", shape)
        for name, shape in parameters(decoder).items()
    }
    return replace(checkpoint, tensors=tensors)


def _experts(decoder: "Decoder", further: int) -> PlannedExperts | None:
    """further: layers after the model's last, which have experts if any has."""
    if (found := decoder.experts) is None:
        return None
    layers = sum(bool(layer.experts) for layer in decoder.layers) + further
    return PlannedExperts(
        layers=layers,
        count=found.experts,
        chosen=found.chosen,
        hidden_size=found.hidden,
        width=found.width,
        matrices=found.matrices,
    )


def _fp8(checkpoint: Checkpoint) -> PlannedFp8 | None:
    """The fp8 weights, by their types; without weights, the layers that config.json lists."""
    from snapexport.exporter.weights.readers import read_quantization
    from snapexport.exporter.weights.readers.fp8 import Fp8Tensor

    quantization = read_quantization(checkpoint.config)
    if quantization is None or not quantization.block[1]:
        return None
    found = {
        name: tensor.shape
        for name, tensor in checkpoint.tensors.items()
        if isinstance(tensor, Fp8Tensor)
    }
    by_row = bool(found)
    by_row &= all(one.by_row for one in checkpoint.tensors.values() if isinstance(one, Fp8Tensor))
    if not found:
        found = {n: tensor.shape for n, tensor in checkpoint.tensors.items() if "_proj" in n}
    linear = {
        name: (shape[0], shape[1])
        for name, shape in found.items()
        if _OF_EXPERTS not in name and not name.endswith(_TAKEN_APART) and len(shape) == 2
    }
    experts, width = any(_OF_EXPERTS in name for name in found), quantization.block[1]
    if by_row and not experts:
        width = sum(map(prod, linear.values())) // sum(rows for rows, _ in linear.values())
    return PlannedFp8(tuple(linear.values()), experts, width, tuple(linear), by_row)


def _require_weights(checkpoint: Checkpoint, names: tuple[str, ...]) -> None:
    for name in names:
        shape = checkpoint.tensors[name].shape if name in checkpoint.tensors else ()
        if len(shape) != 2:
            raise UserError(
                f"the checkpoint has no matrix {name}",
                "download the checkpoint again, or check config.json against it",
            )


def _mostly_stored(checkpoint: Checkpoint) -> DType:
    nbytes: Counter[str] = Counter()
    for span in checkpoint.tensors.values():
        nbytes[span.dtype] += span.nbytes
    (dtype, _), *_ = nbytes.most_common(1)
    return _STORED.get(dtype, "fp32")
