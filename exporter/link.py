"""Links a traced graph to the placed weights: initializers become references into their files."""

from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx_ir.passes import common as common_passes
from onnxscript import optimizer
from torch._subclasses.fake_tensor import FakeTensor

from snapexport.contract.errors import UserError
from snapexport.contract.safetensors import TensorSpan
from snapexport.exporter.architectures import architecture_of
from snapexport.exporter.checkpoint import Checkpoint
from snapexport.exporter.quiet import quiet
from snapexport.exporter.weights import WEIGHTS

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_DTYPES = {
    "F32": ir.DataType.FLOAT,
    "F16": ir.DataType.FLOAT16,
    "BF16": ir.DataType.BFLOAT16,
    "U8": ir.DataType.UINT8,
}


def checkpoint_tensors(
    model: ir.Model, checkpoint: Checkpoint, config: "PretrainedConfig"
) -> dict[str, str]:
    """{initializer without data: checkpoint tensor} of a traced graph.

    Raises UserError if the checkpoint lacks a tensor or has it in another shape.
    """
    tied = architecture_of(config).tied if config.tie_word_embeddings else {}
    values = {name: value for name, value in model.graph.initializers.items() if _is_fake(value)}
    wanted = {name: tied.get(name, name) for name in values}
    missing = [name for name in wanted.values() if name not in checkpoint.tensors]
    if missing:
        raise UserError(
            f"the checkpoint lacks {len(missing)} tensors that its architecture needs, "
            f"among them {missing[0]}",
            "download the checkpoint again, or check config.json against it",
        )
    for name, source in wanted.items():
        _require_shape(source, values[name], checkpoint.tensors[source])
    return wanted


def _require_shape(name: str, value: ir.Value, span: TensorSpan) -> None:
    assert value.shape is not None
    expected = tuple(value.shape.numpy())
    if expected != span.shape:
        raise UserError(
            f"the tensor {name} has shape {list(span.shape)}, config.json wants {list(expected)}",
            "check config.json against the checkpoint",
        )


def _is_fake(value: ir.Value) -> bool:
    return isinstance(getattr(value.const_value, "raw", None), FakeTensor)


def link(model: ir.Model, sources: dict[str, str], placed: dict[str, TensorSpan]) -> None:
    """Fold small constants, and point every initializer of `checkpoint_tensors` at its bytes."""
    for name in sources:
        # Without data the optimizer folds no reader of a weight, and merges no two weights.
        model.graph.initializers[name].const_value = None
    with quiet():
        optimizer.optimize_ir(model)
    common_passes.ClearMetadataAndDocStringPass()(model)
    for name, source in sources.items():
        value = model.graph.initializers[name]
        value.const_value = _reference(source, placed[source])
        value.name = source


def _reference(name: str, span: TensorSpan) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        location=f"{WEIGHTS}/{span.file.name}",
        offset=span.offset,
        length=span.nbytes,
        dtype=_DTYPES[span.dtype],
        shape=ir.Shape(span.shape),
        name=name,
        base_dir=span.file.parent.parent,
    )
