"""Gives a checkpoint's tensors the names and the layout of transformers' model.

transformers' own mapping says how: it renames, and it joins, splits or turns tensors. Experts that
are matrices each become stacks, read matrix by matrix. Anything else is converted by transformers
itself, one target at a time, while it is read. No weight is read here.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from snapexport.errors import UserError
from snapexport.exporter.model import Decoder
from snapexport.exporter.model.models import model_on_meta
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights.arranged import Rows, Stack
from snapexport.exporter.weights.tensor_file import (
    BLOCK,
    NUMPY_DTYPE,
    Calculated,
    Tensor,
    blocks,
    in_blocks,
)
from snapexport.files.dtypes import BY_SAFETENSORS
from snapexport.files.safetensors import TensorSpan

_Converter = tuple[str, WeightConverter]
"""A pattern of names, and what converts the tensors that match it."""


@dataclass
class _Collected:
    """The tensors of one target, by the patterns that their names match."""

    converter: WeightConverter
    sources: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def convert(self, target: str, model: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
        """{name: tensor} by transformers' operations. tensors: by the sources' names."""
        converter: Any = copy.deepcopy(self.converter)
        for pattern, sources in self.sources.items():
            for name in sources:
                converter.add_tensor(target, name, pattern, tensors[name])
        return converter.convert(target, model=model, config=model.config)

    def left_with_ends(self) -> "_Collected":
        """The first and the last tensor of each pattern."""
        ends = {}
        for pattern, sources in self.sources.items():
            names = list(sources)
            ends[pattern] = {name: sources[name] for name in (names[0], names[-1])}
        return replace(self, sources=ends)

    @property
    def listed(self) -> list[tuple[str, Tensor]]:
        return [item for sources in self.sources.values() for item in sources.items()]


@dataclass(frozen=True)
class Converted(Calculated):
    """One result of transformers' operations on other tensors, which are read as a whole."""

    name: str
    target: str
    collected: _Collected
    model: Any
    shape: tuple[int, ...] = ()

    @property
    def dtype(self) -> str:
        dtypes = {tensor.dtype for _, tensor in self.collected.listed}
        return dtypes.pop() if len(dtypes) == 1 else "F32"

    def blocks(self, multiple: int = 1, most: int = BLOCK) -> Iterator[NDArray[np.generic]]:
        """The elements in order, flat, in blocks whose size is a multiple of `multiple`."""
        read = {name: as_torch(tensor, self.dtype) for name, tensor in self.collected.listed}
        with torch.no_grad():
            made = self.collected.convert(self.target, self.model, read)[self.name]
        made = made[0] if isinstance(made, list) else made
        return in_blocks(_as_numpy(made.contiguous(), self.dtype), multiple, most)


def by_model_names(checkpoint: Checkpoint, decoder: Decoder) -> Checkpoint:
    """The checkpoint with the tensors of the decoder's model. Raises UserError.

    Tensors that the model doesn't have keep their names.
    """
    model = model_on_meta(decoder)
    tensors: dict[str, Tensor] = {}
    for name, (target, converter) in _targets(checkpoint.tensors, model).items():
        if converter is None:
            _require_new(target, name, tensors)
            tensors[target] = checkpoint.tensors[name]
    for target, found in _collect(checkpoint.tensors, model).items():
        tensors |= _convert(target, found, model)
    return replace(checkpoint, tensors=_under_sources(tensors, decoder.names.tied))


def _under_sources(tensors: dict[str, Tensor], tied: Mapping[str, str]) -> dict[str, Tensor]:
    """Tied weights under the name that graphs read, whichever of their names is stored."""
    moved = {
        source: name for name, source in tied.items() if name in tensors and source not in tensors
    }
    kept = {name: one for name, one in tensors.items() if name not in moved.values()}
    return kept | {source: tensors[name] for source, name in moved.items()}


def _collect(tensors: Mapping[str, Tensor], model: Any) -> dict[str, _Collected]:
    """{target: the tensors that transformers' operations make it of}."""
    collected: dict[str, _Collected] = {}
    for name, (target, converter) in _targets(tensors, model).items():
        if converter is not None:
            pattern, operations = converter
            found = collected.setdefault(target, _Collected(operations))
            found.sources.setdefault(pattern, {})[name] = tensors[name]
    return collected


def joined_in_another_way(
    checkpoint: Checkpoint, decoder: Decoder, places: Iterable[int]
) -> str | None:
    """The first stack of some layers that transformers' own operations make another of, or None.

    Of each stack the first and the last expert are joined, in either way, and compared.
    """
    model = model_on_meta(decoder)
    indices = [f".{decoder.depth[place]}." for place in places]
    of_layers = {
        name: one
        for name, one in checkpoint.tensors.items()
        if any(index in name for index in indices)
    }
    for target, found in _collect(of_layers, model).items():
        few = found.left_with_ends()
        if stack := _stack(few):
            read = {name: as_torch(tensor, stack.dtype) for name, tensor in few.listed}
            theirs = few.convert(target, model, read)[target]
            if not torch.equal(as_torch(stack).view(torch.uint8), theirs.view(torch.uint8)):
                return target
    return None


def targets(names: Iterable[str], decoder: Decoder) -> dict[str, str]:
    """{name in a checkpoint: the parameter of the decoder's model that it becomes}."""
    model = model_on_meta(decoder)
    state, found = model.state_dict(), _targets(names, model)
    return {name: target for name, (target, _) in found.items() if target in state}


def places(names: Iterable[str], model: Any) -> dict[str, tuple[str, bool]]:
    """{name in a checkpoint: the model's parameter, and whether it becomes only a part of it}."""
    state = model.state_dict()
    found = _targets(names, model).items()
    return {name: (own, by is not None) for name, (own, by) in found if own in state}


def _targets(names: Iterable[str], model: Any) -> dict[str, tuple[str, _Converter | None]]:
    """The model's name of each tensor, or its own name where the model doesn't have it."""
    state, mapping = model.state_dict(), get_model_conversion_mapping(model)
    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    converters = [one for one in mapping if isinstance(one, WeightConverter)]
    of_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    found: dict[str, tuple[str, _Converter | None]] = {}
    for name in sorted(names, key=dot_natural_key):
        prefix = model.base_model_prefix
        target, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if target not in state:
            target, pattern = name, None
        found[name] = target, (pattern, of_pattern[pattern]) if pattern else None
    return found


def _require_new(target: str, name: str, tensors: Mapping[str, Tensor]) -> None:
    if target in tensors:
        raise UserError(
            f"the checkpoint has {target} twice, once as {name}",
            "download the checkpoint again: the file is damaged or incomplete",
        )


def _convert(target: str, found: _Collected, model: Any) -> dict[str, Tensor]:
    if stack := _stack(found):
        return {target: stack}
    empty = {name: torch.empty(tensor.shape, device="meta") for name, tensor in found.listed}
    try:
        made = found.convert(target, model, empty)
    except Exception:  # tensors lack, or differ in their shapes: checks of shapes name them
        return dict(found.listed)
    shapes = {name: (one[0] if isinstance(one, list) else one).shape for name, one in made.items()}
    return {name: Converted(name, target, found, model, tuple(s)) for name, s in shapes.items()}


def _stack(found: _Collected) -> Tensor | None:
    """Matrices of experts as a stack [E,N,K], if the operations only join them so."""
    patterns = [name for name in found.converter.source_patterns if name in found.sources]
    of_experts = [list(found.sources[name].values()) for name in patterns]
    counts = {len(matrices) for matrices in of_experts}
    match found.converter.operations:
        case [MergeModulelist(dim=0)] if len(patterns) == 1:
            parts: tuple[Tensor, ...] = tuple(of_experts[0])
        case [MergeModulelist(dim=0), Concatenate(dim=1)] if len(patterns) == 2:
            if len(counts) > 1:
                return None
            parts = tuple(map(Rows, zip(*of_experts, strict=True)))
        case _:
            return None
    alike = len({part.shape for part in parts}) == 1 and len(parts[0].shape) == 2
    return Stack(parts) if alike else None


def as_torch(tensor: Tensor, dtype: str = "") -> torch.Tensor:
    """The whole tensor. dtype: as safetensors spells it; its own if empty."""
    dtype = dtype or tensor.dtype
    read = [block.astype(NUMPY_DTYPE[dtype], copy=False) for block in blocks(tensor)]
    flat = np.concatenate(read) if read else np.empty(0, NUMPY_DTYPE[dtype])
    raw = torch.from_numpy(np.ascontiguousarray(flat).view(np.uint8).copy())
    return raw.view(_torch_dtype(dtype)).reshape(tensor.shape)


def map_span(span: TensorSpan) -> torch.Tensor:
    """A tensor whose memory is its file's. Writing to it leaves the file as it is."""
    raw = np.memmap(span.file, np.uint8, "c", span.offset, shape=(span.nbytes,))
    return torch.from_numpy(raw).view(_torch_dtype(span.dtype)).reshape(span.shape)


def _as_numpy(tensor: torch.Tensor, dtype: str) -> NDArray[np.generic]:
    raw: NDArray[np.generic] = tensor.reshape(-1).view(torch.uint8).numpy()
    return raw.view(NUMPY_DTYPE[dtype])


def _torch_dtype(dtype: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, BY_SAFETENSORS[dtype].numpy)
    return found
