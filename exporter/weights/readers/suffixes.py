"""Names the format of quantized weights by the ends of their tensors' names."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A way to store weights. ends: of a weight's tensors, which are all there.

    by_tensors: the method in config.json that is read, if tensors show all that it says.
    """

    name: str
    ends: tuple[str, ...]
    by_tensors: str = ""


_FORMATS = (
    Format("EXL2", (".q_weight", ".q_scale", ".q_groups")),
    Format("EXL3", (".trellis", ".suh", ".svh")),
    Format("quanto", (".weight._data", ".weight._scale")),
    Format("torchao", ("._weight_qdata", "._weight_scale"), "torchao"),
    Format("HQQ", (".W_q",)),
    Format("AQLM", (".codes", ".codebooks")),
    Format("VPTQ", (".indices", ".centroids.weight")),
    Format("QuIP#", (".Qidxs",)),
    Format("QQQ", (".B", ".s_channel")),
    Format("Marlin", (".B", ".s")),
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
    Format("EETQ", (".weight_scales",)),
)


def format_of(names: Iterable[str]) -> tuple[Format, str] | None:
    """The format of a checkpoint's tensors, and one of them; None if they aren't quantized."""
    listed = list(names)
    for one in _FORMATS:
        found = [next((name for name in listed if name.endswith(end)), None) for end in one.ends]
        if all(found):
            return one, str(found[0])
    return None
