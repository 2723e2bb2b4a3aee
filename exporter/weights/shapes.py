"""Checks a checkpoint's tensors against its config before anything is traced.

Every parameter of the model has a tensor of floats of its shape, and not all of them are NaN or
infinite.
"""

import math
import re
from collections.abc import Iterable, Mapping

import numpy as np

from snapexport.errors import UserError
from snapexport.exporter.model import Decoder
from snapexport.exporter.model.models import model_on_meta, parameters
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights.derived import stored_shapes
from snapexport.exporter.weights.tensor_file import NUMPY_DTYPE, Tensor, blocks, require_floats

_SLICE = 1 << 16
"""Values read at a time until one is finite: nearly always the first ones suffice."""


def require_tensors(checkpoint: Checkpoint, decoder: Decoder) -> None:
    """Raise UserError for a tensor that is missing, misshapen, without values, or tied wrongly."""
    tied, found = decoder.names.tied, parameters(decoder)
    require_parameters(checkpoint, {tied.get(name, name): shape for name, shape in found.items()})
    for name, source in tied.items():
        if name in found and name in checkpoint.tensors:
            _require_equal(name, source, checkpoint)


def require_parameters(checkpoint: Checkpoint, parameters: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UserError for a parameter whose tensor is missing, misshapen or without values."""
    shapes = stored_shapes(parameters, checkpoint.tensors)
    _require_present(shapes, checkpoint)
    for name, shape in shapes.items():
        _require_shape(name, shape, checkpoint.tensors[name])
        require_floats(name, checkpoint.tensors[name])
        _require_numbers(name, checkpoint.tensors[name])


def _require_present(names: Iterable[str], checkpoint: Checkpoint) -> None:
    missing = [name for name in names if name not in checkpoint.tensors]
    if missing and checkpoint.absent:
        raise checkpoint.absent.error(missing[0])
    if missing:
        raise UserError(
            f"the checkpoint lacks {len(missing)} tensors that its architecture needs, "
            f"among them {missing[0]}",
            "download the checkpoint again, or check config.json against it",
        )


def _require_shape(name: str, expected: tuple[int, ...], tensor: Tensor) -> None:
    if expected != tensor.shape:
        raise UserError(
            f"the tensor {name} has shape {list(tensor.shape)}, config.json wants {list(expected)}",
            "check config.json against the checkpoint",
        )


def unread(checkpoint: Checkpoint, decoder: Decoder) -> tuple[str, ...]:
    """Say what a build leaves out: what no file has, and values that the model has no place for.

    Such as biases that config.json switches off, and layers beyond its number of them. Those that
    are all 0 change nothing.
    """
    model, known = model_on_meta(decoder), parameters(decoder)
    modules = {name for name, one in model.named_modules() if dict(one.named_parameters())}
    leaves = modules - {name.rpartition(".")[0] for name in modules}
    found = [
        name
        for name, tensor in checkpoint.tensors.items()
        if name not in known
        and (not leaves.isdisjoint(_above(name)) or _is_of_more_layers(name, decoder))
        and _has_values(tensor)
    ]
    if not found:
        return checkpoint.absent.notes
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    left_out = f"left out, as config.json has no place for it: {found[0]}{more}"
    return (*checkpoint.absent.notes, left_out)


def _is_of_more_layers(name: str, decoder: Decoder) -> bool:
    """Whether a tensor is of a layer that no model has, be it one that predicts further tokens."""
    found = re.match(rf"{re.escape(decoder.names.layers)}\.(\d+)\.", name)
    predict = getattr(decoder.config, "num_nextn_predict_layers", None) or 0
    return found is not None and int(found[1]) >= decoder.config.num_hidden_layers + predict


def _above(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _has_values(tensor: Tensor) -> bool:
    """Whether a value is not 0. Only floats are weights."""
    return tensor.dtype in NUMPY_DTYPE and any(block.any() for block in blocks(tensor, most=_SLICE))


def _require_numbers(name: str, tensor: Tensor) -> None:
    """Refuse a tensor without a single finite value."""
    if not tensor.nbytes or any(np.isfinite(block).any() for block in blocks(tensor, most=_SLICE)):
        return
    raise UserError(
        f"every value of the tensor {name} is NaN or infinite",
        "download the checkpoint again: the file is damaged",
    )


def _require_equal(name: str, source: str, checkpoint: Checkpoint) -> None:
    """A tensor that config.json ties to another may be stored as well, if it is the same."""
    if not is_same(checkpoint, name, source):
        raise UserError(
            f"config.json ties {name} to {source}, and the checkpoint has both, with other values",
            'set "tie_word_embeddings" to false in config.json, if the model has a head of its own',
        )


def is_same(checkpoint: Checkpoint, name: str, source: str) -> bool:
    """Whether two tensors of a checkpoint have the same type, shape and bytes."""
    one, other = checkpoint.tensors[name], checkpoint.tensors[source]
    if (one.dtype, one.shape) != (other.dtype, other.shape) or one.dtype not in NUMPY_DTYPE:
        return False
    pairs = zip(blocks(one), blocks(other), strict=True)
    return all(left.tobytes() == right.tobytes() for left, right in pairs)


def bytes_of_layers(decoder: Decoder) -> list[int]:
    """Bytes of each layer's weights as fp32, by place."""
    stem = re.compile(rf"{re.escape(decoder.names.layers)}\.(\d+)\.")
    sizes = dict.fromkeys(range(max(decoder.depth) + 1), 0)
    for name, shape in parameters(decoder).items():
        if found := stem.match(name):
            sizes[int(found[1])] += 4 * math.prod(shape)
    return [sizes[place] for place in range(len(decoder.depth))]
