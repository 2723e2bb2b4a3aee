"""Makes the layer for multi-token prediction (MTP), and checks that a checkpoint has its tensors.

A checkpoint with N layers has them as `model.layers.N.*`: a decoder layer, two norms (enorm and
hnorm), a projection (eh_proj) and the head's norm (shared_head.norm). Copies of the embedding and
of the head may be there too: the layer shares the model's.
"""

from typing import Any

import torch
from torch import nn

from snapexport.errors import UserError
from snapexport.exporter.model import Decoder
from snapexport.exporter.model.models import model_on_meta
from snapexport.exporter.read.checkpoint import Checkpoint
from snapexport.exporter.weights.shapes import is_same, require_parameters

_LEAVE_OUT = "leave out --mtp"
_FAMILIES = ("deepseek_v3",)
"""Types of models whose checkpoints may have the layer, after the last one."""


def decoder_of_layer(decoder: Decoder) -> Decoder:
    """The decoder of the model's last layer alone, which `put_layer` replaces by one like it."""
    return decoder.left_with([len(decoder.layers) - 1])


def put_layer(model: Any, index: int) -> None:
    """Put the layer in the place of a model's layers, under the checkpoint's names."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(model.dtype)
    try:
        layer = _layer(model, index)
    finally:
        torch.set_default_dtype(usual)
    model.model.layers = nn.ModuleDict({str(index): layer.eval()})


def _layer(model: Any, index: int) -> Any:
    config, norm = model.config, type(model.model.norm)
    width, epsilon = config.hidden_size, config.rms_norm_eps
    layer: Any = type(model.model.layers[0])(config, index)
    layer.enorm, layer.hnorm = norm(width, epsilon), norm(width, epsilon)
    layer.eh_proj = nn.Linear(2 * width, width, bias=False)
    layer.shared_head = nn.ModuleDict({"norm": norm(width, epsilon)})
    return layer


def require_layer(checkpoint: Checkpoint, decoder: Decoder) -> None:
    """Raise UserError for a checkpoint without such a layer, or one that is not as it should be."""
    require_present(checkpoint, decoder)
    stem = _stem(decoder)
    model = model_on_meta(decoder_of_layer(decoder))
    put_layer(model, len(decoder.layers))
    shapes = {name: tuple(one.shape) for name, one in model.state_dict().items()}
    require_parameters(
        checkpoint, {name: shape for name, shape in shapes.items() if name.startswith(stem)}
    )
    _require_shared(checkpoint, decoder, stem)


def require_present(checkpoint: Checkpoint, decoder: Decoder) -> None:
    """Raise UserError for a checkpoint without such a layer, by its headers alone."""
    stem = _stem(decoder)
    count = getattr(decoder.config, "num_mtp_layers", 0) or 0
    if decoder.family.model_type not in _FAMILIES:
        raise UserError(
            f"--mtp is not supported with the architecture {decoder.family.name}: its "
            "checkpoints have no layer for multi-token prediction",
            _LEAVE_OUT,
        )
    if count < 1 or f"{stem}eh_proj.weight" not in checkpoint.tensors:
        raise UserError(
            f"--mtp needs a layer for multi-token prediction, and the checkpoint has no {stem}*",
            f"{_LEAVE_OUT}, or use the original checkpoint: some copies are without the layer",
        )
    if count > 1:
        raise UserError(
            f"--mtp is for one layer of multi-token prediction, and config.json has {count}",
            _LEAVE_OUT,
        )


def _stem(decoder: Decoder) -> str:
    """The beginning of the names of the layer's tensors."""
    return f"{decoder.names.layers}.{len(decoder.layers)}."


def _require_shared(checkpoint: Checkpoint, decoder: Decoder, stem: str) -> None:
    """Copies of the embedding and of the head are the model's."""
    head = decoder.embedding if decoder.tied else decoder.head
    copies = {"embed_tokens.weight": decoder.embedding, "shared_head.head.weight": head}
    for name, original in copies.items():
        stored = stem + name in checkpoint.tensors
        if stored and not is_same(checkpoint, stem + name, original):
            raise UserError(
                f"--mtp shares {original} with the model, and {stem}{name} has other values",
                _LEAVE_OUT,
            )
