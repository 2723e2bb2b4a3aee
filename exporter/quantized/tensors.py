"""Finds quantized tensors among those of a checkpoint, and puts dequantized ones in their place."""

from collections.abc import Callable, Mapping
from functools import partial

from snapexport.errors import UserError
from snapexport.exporter.moved_weights import Swapped
from snapexport.exporter.quantized.config import Quantization
from snapexport.exporter.quantized.fp8 import Fp8Tensor
from snapexport.exporter.quantized.mxfp4 import Mxfp4Tensor
from snapexport.exporter.tensor_file import Tensor
from snapexport.files.safetensors import TensorSpan

Spans = Mapping[str, TensorSpan]

_AGAIN = "download the checkpoint again: the file is damaged or incomplete"
_FP8_SCALES = "_scale_inv"
_BLOCKS, _SCALES = "_blocks", "_scales"


def dequantized(tensors: Spans, quantization: Quantization) -> dict[str, Tensor]:
    """All tensors under the names of the model's parameters. Raises UserError.

    mxfp4: `x_blocks` [E,N,K/32,16] and `x_scales` [E,N,K/32] become x [E,K,N], the shape in which
    transformers has gpt-oss's experts. fp8: `x` [N,K] and `x_scale_inv` become x [N,K].
    """
    if quantization.kind == "mxfp4":
        return _replaced(tensors, (_BLOCKS, _SCALES), _mxfp4)
    fp8 = partial(Fp8Tensor.of, block=quantization.block)
    found = _replaced(tensors, ("", _FP8_SCALES), fp8)
    for name, tensor in found.items():
        if isinstance(tensor, TensorSpan) and tensor.dtype == "F8_E4M3":
            raise UserError(f"the tensor {name} is fp8 and has no {name}{_FP8_SCALES}", _AGAIN)
    return found


def _mxfp4(name: str, blocks: TensorSpan, scales: TensorSpan) -> Tensor:
    return Swapped(Mxfp4Tensor.of(name, blocks, scales))


def _replaced(
    tensors: Spans,
    suffixes: tuple[str, str],
    made: Callable[[str, TensorSpan, TensorSpan], Tensor],
) -> dict[str, Tensor]:
    """The tensors, with pairs of values and scales replaced by what is `made` of them."""
    values, scales = suffixes
    stems = {
        name.removesuffix(end) for name in tensors for end in suffixes if end and name.endswith(end)
    }
    parts = {stem + end for stem in stems for end in suffixes}
    for stem in sorted(stems):
        for end, other in ((values, scales), (scales, values)):
            if stem + end not in tensors:
                raise UserError(
                    f"the checkpoint has the tensor {stem}{other} without {stem}{end}", _AGAIN
                )
    kept: dict[str, Tensor] = {name: one for name, one in tensors.items() if name not in parts}
    return kept | {
        stem: made(stem, tensors[stem + values], tensors[stem + scales]) for stem in sorted(stems)
    }
