"""Capabilities of each target: what its graphs may ask for, and what running them costs.

Code asks a record instead of comparing names, so that a new target is a record here and its passes
in `graphs/targets/`. Knows no pass, no backend library and no build.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from snapexport.contract.errors import UserError

DType = Literal["fp32", "fp16", "bf16"]
CacheDType = Literal["fp32", "fp16", "bf16", "int8"]
Target = Literal["onnxruntime", "tensorrt", "portable"]
DTYPES: tuple[DType, ...] = get_args(DType)
CACHE_DTYPES: tuple[CacheDType, ...] = get_args(CacheDType)
Masked = Literal["chunk", "window", "softcap"]


@dataclass(frozen=True, kw_only=True)
class TargetCapabilities:
    """What holds for the graphs of one target.

    title: the name of what runs them, for messages.
    cache_dtypes: of compressed caches beside a model in fp32; the model's own is always possible.
    int4_dtypes: with which `--dtype` linear layers may have 4-bit weights.
    valid_slots: an operator can attend to valid cache slots alone (`--decode-attention valid`).
    largest_topk: most elements that one TopK gives; None: no limit.
    decomposable: attention is one fused kernel unless several are allowed (`--trt-decomposable`).
    compiled: `snapexport engine` compiles the graphs, and only then they run on this target.
    runs_on_gpu: graphs work in GPU memory that they share, and calculate in 16 bits; on a CPU each
    has an arena of its own, and 16-bit weights are converted to fp32.
    plugins: our functions may be plugins, which hold no copies of keys and scores.
    weights_per_graph: every graph holds a copy of the weights.
    cuda_dtypes: with which ONNX Runtime's CUDA provider has kernels for all operators.
    fused_attention: dtypes in which prefill's attention never holds a layer's scores;
    fused_whole_prompt: nor in a prompt without a cache (single shot).
    masks: where attention needs an explicit mask.
    vote_key_copies: of the prompt's keys while the vote runs as standard operators.
    """

    title: str
    cache_dtypes: tuple[CacheDType, ...] = ()
    int4_dtypes: tuple[DType, ...] = ()
    valid_slots: bool = False
    largest_topk: int | None = None
    decomposable: bool = False
    compiled: bool = False
    runs_on_gpu: bool = False
    plugins: bool = False
    weights_per_graph: bool = False
    cuda_dtypes: tuple[DType, ...] = DTYPES
    fused_attention: tuple[DType, ...] = ()
    fused_whole_prompt: bool = False
    masks: tuple[Masked, ...] = ()
    vote_key_copies: int = 1


TARGETS: Mapping[Target, TargetCapabilities] = {
    "onnxruntime": TargetCapabilities(
        title="ONNX Runtime",
        cache_dtypes=("fp16", "int8"),
        int4_dtypes=("fp32", "fp16"),
        valid_slots=True,
        # GroupQueryAttention: in fp32 it would go to the CPU, and all the caches with it.
        cuda_dtypes=("fp16", "bf16"),
        fused_attention=("fp32",),
        # Transposed, and cut at the prompt's end before that.
        vote_key_copies=2,
    ),
    "tensorrt": TargetCapabilities(
        title="TensorRT",
        # ITopKLayer::setK in NvInfer.h (10.15 and 11.1 alike).
        largest_topk=3840,
        decomposable=True,
        compiled=True,
        runs_on_gpu=True,
        plugins=True,
        weights_per_graph=True,
        fused_attention=DTYPES,
        fused_whole_prompt=True,
        masks=("chunk", "window", "softcap"),
    ),
    "portable": TargetCapabilities(
        title="any runtime of standard ONNX",
        cache_dtypes=("fp16",),
        masks=("window",),
    ),
}


def capabilities(target: Target) -> TargetCapabilities:
    """The record of a target. Raises UserError for an unknown one."""
    if target not in TARGETS:
        raise UserError(f"--target '{target}' is not known", f"choose from {', '.join(TARGETS)}")
    return TARGETS[target]


def targets_with(capability: str) -> str:
    """Names of the targets that have a capability, for messages: `onnxruntime, portable`."""
    return ", ".join(name for name, record in TARGETS.items() if getattr(record, capability))
