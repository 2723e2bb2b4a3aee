"""Names the format of quantized weights by the ends of their tensors' names."""

from collections.abc import Mapping
from dataclasses import dataclass

from snapexport.exporter.weights.tensor_file import Tensor


@dataclass(frozen=True)
class Format:
    """A way to store weights. ends: of a weight's tensors, which are all there, some in two ways.

    by_tensors: the method in config.json that is read, if tensors show all that it says. is_read:
    whether some config makes it readable. dtype: of the first tensor; empty: any.
    """

    name: str
    ends: tuple[str | tuple[str, ...], ...]
    by_tensors: str = ""
    is_read: bool = True
    dtype: str = ""


_FORMATS = (
    Format("EXL2", (".q_weight", ".q_scale", ".q_groups"), is_read=False),
    Format("EXL3", (".trellis", (".suh", ".su"), (".svh", ".sv")), is_read=False),
    Format("quanto", ("._data", ("._scale", "._scale_shift")), is_read=False),
    Format("torchao", ("._weight_qdata", "._weight_scale"), "torchao"),
    Format("torchao with packed weights", ("._weight_qdata",), is_read=False),
    Format("torchao of older versions", (".tensor_impl.int_data",), is_read=False),
    Format("HQQ", (".W_q",), is_read=False),
    Format("AQLM", (".codes", ".codebooks"), is_read=False),
    Format("VPTQ", (".indices", ".centroids.weight"), is_read=False),
    Format("QuIP#", (".Qidxs",), is_read=False),
    Format("SpQR", (".dense_weights", ".row_offsets"), is_read=False),
    Format("HIGGS", (".tables", ".tables2"), is_read=False),
    Format("QQQ", (".B", ".s_channel"), is_read=False),
    Format("Marlin", (".B", ".s"), is_read=False),
    Format("bitsandbytes", (".weight.absmax",)),
    Format("bitsandbytes", (".SCB",)),
    Format("NVFP4", (".weight_scale", ".weight_scale_2")),
    Format("fp8", (".weight_scale_inv",)),
    Format("MXFP4", ("_proj_blocks", "_proj_scales")),
    Format("compressed-tensors", (".weight_packed",)),
    Format("MLX", (".scales", ".biases")),
    Format("GPTQ", (".qweight", ".g_idx")),
    Format("GPTQ or AWQ", (".qweight",)),
    Format("compressed-tensors or EETQ", (".weight_scale",)),
    Format("EETQ", (".weight_scales",), is_read=False),
    Format("MLX of floats of 4 bits", (".scales",), is_read=False, dtype="U8"),
)


def format_of(tensors: Mapping[str, Tensor]) -> tuple[Format, str] | None:
    """The format of a checkpoint's tensors, and one of them; None if they aren't quantized."""
    for one in _FORMATS:
        found = [next((n for n in tensors if n.endswith(end)), "") for end in one.ends]
        if all(found) and one.dtype in ("", tensors[found[0]].dtype):
            return one, found[0]
    return None
