"""Capabilities of each target: what its graphs may use, and what running them costs.

Code reads these records instead of comparing names, so a new target needs only a record here, its
factors in `contract/memory.py` and its passes in `graphs/targets/`. Knows no pass, no backend
library and no build.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from snapexport.errors import UserError
from snapexport.files.dtypes import DTYPES, OF_GRAPHS, CacheDType, DType

Target = Literal["onnxruntime", "tensorrt", "tensorrt-rtx", "portable", "openvino"]
Masked = Literal["chunk", "window", "softcap", "sink"]


@dataclass(frozen=True, kw_only=True)
class FusedShapes:
    """Shapes for which a compiler has a fused attention kernel.

    row_bytes: largest (S + D) * bytes of a value, for one query row over S cache slots.
    chunk_value_bytes: bytes of a value for two rows and more. head_dim_step, largest_head_dim: D is
    a multiple of the one, and at most the other. smallest_chunk_head_dim: of two rows and more.
    """

    row_bytes: int
    chunk_value_bytes: int
    head_dim_step: int
    largest_head_dim: int
    smallest_chunk_head_dim: int

    def fits(self, value_bytes: int, rows: int, slots: int, head_dim: int) -> bool:
        """Whether attention of `rows` queries over `slots` keys has a fused kernel."""
        if head_dim % self.head_dim_step or head_dim > self.largest_head_dim:
            return False
        if rows == 1:
            return (slots + head_dim) * value_bytes <= self.row_bytes
        return value_bytes == self.chunk_value_bytes and head_dim >= self.smallest_chunk_head_dim

    def fits_with_sink(self, value_bytes: int, rows: int, slots: int, head_dim: int) -> bool:
        """The same beside a learned sink, which takes a cache slot and SINK_CHANNELS channels.

        They are a copy of the cache. It pays for a chunk, and not for a decode step's one row.
        """
        return rows > 1 and self.fits(value_bytes, rows, slots + 1, head_dim + SINK_CHANNELS)


FUSED_WIDTH = 8
"""Fused kernels take heads whose width is a multiple of it, ONNX Runtime's and TensorRT's alike."""

MEASURED_SHAPES = FusedShapes(
    row_bytes=48 * 1024,
    chunk_value_bytes=2,
    head_dim_step=FUSED_WIDTH,
    largest_head_dim=256,
    smallest_chunk_head_dim=16,
)
"""Measured with the builder of TensorRT for RTX 1.7 (tests/rtx/). Whether TensorRT has the same
limits is not known; attention that keeps them is accepted by both."""


LARGEST_PLUGIN_HEAD = 256
"""Widest key that the plugins take (plugins/launchers/refusal.h)."""

SINK_CHANNELS = 8
"""Channels that a learned sink adds to fused attention: heads are of multiples of head_dim_step."""


FEWER_SLOTS = 4, 16
"""A decode step reads the first S/4 or S/16 cache slots while no others are valid, where
`TargetCapabilities.reads_fewer_slots`."""


@dataclass(frozen=True, kw_only=True)
class EngineLibrary:
    """A library that compiles a target's graphs into engines.

    module: its Python bindings. extra: of snapexport, which installs it. oldest: the first version
    whose parser has TensorScatter, with which our graphs write caches. newest: the first version
    that was not tried. capabilities: GPUs by compute capability for which it compiles ahead of
    time, on any machine; empty: it compiles on the GPU that runs the engine. fp8_capabilities,
    fp4_capabilities: those of them that have fp8, and NVFP4.
    """

    title: str
    module: str
    extra: str
    oldest: tuple[int, int]
    newest: tuple[int, int]
    capabilities: tuple[str, ...] = ()
    fp8_capabilities: tuple[str, ...] = ()
    fp4_capabilities: tuple[str, ...] = ()


TENSORRT = EngineLibrary(
    title="TensorRT", module="tensorrt", extra="tensorrt", oldest=(10, 15), newest=(12, 0)
)
"""oldest: CHANGELOG.md of NVIDIA/TensorRT."""

TENSORRT_RTX = EngineLibrary(
    title="TensorRT for RTX",
    module="tensorrt_rtx",
    extra="rtx",
    oldest=(1, 4),
    newest=(2, 0),
    # Ampere, Ada and Blackwell. Turing (7.5) has no bfloat16.
    capabilities=("8.0", "8.6", "8.9", "12.0", "12.1"),
    # Its builder: "Cannot compile for target(s) sm86, because the model contains fp8_e4m3".
    fp8_capabilities=("8.9", "12.0", "12.1"),
    fp4_capabilities=("12.0", "12.1"),
)


TENSORRT_TYPES = tuple(found.onnx for found in OF_GRAPHS if found.tensorrt)
"""A tensor of fp64 would be taken for one of fp32."""


@dataclass(frozen=True, kw_only=True)
class TargetCapabilities:
    """Capabilities of one target's graphs.

    title: the runtime's name, for messages.
    cache_dtypes: of compressed caches beside a model in fp32; the model's own is always possible.
    integer_dtypes: values of `--dtype` beside which weights can be integers. integer_experts: also
    those of experts. signed_integers: as DequantizeLinear reads them, without zero points and in
    whole blocks.
    openvino: OpenVINO reads the graphs as they are.
    fp8_weights: graphs may hold fp8 weights. ONNX Runtime's CPU provider would dequantize them anew
    in each run, which took 11 times as long as a row's product with the matrix in fp32.
    valid_slots: an operator can attend to only the valid cache slots (`--decode-attention valid`).
    reads_fewer_slots: dtypes in which a step copies and reads only the first cache slots of a
    layer while no others are valid.
    domains, own_operators: operators beside ONNX's own: of whole domains, and in ONNX's domain.
    tensor_types: ONNX's names of the types that it computes in; empty: all.
    largest_topk: largest K of a TopK; None: no limit.
    library: compiles the graphs (`snapexport engine`), and only then they run on this target.
    one_product: dtypes in which a layer's q, k and v are one product. Each kernel costs a GPU some
    microseconds; a CPU gains nothing by it.
    runs_on_gpu: graphs share GPU memory and compute in 16 bits. Otherwise they run on a CPU, where
    each has its own arena, and 16-bit weights are converted to fp32.
    plugins: our functions may be plugins, which hold no copies of keys and scores.
    weights_per_graph: every graph holds a copy of the weights, unless all take them as inputs.
    cuda_dtypes: dtypes for which ONNX Runtime's CUDA provider has kernels for all operators.
    attends_to_capacity: prefill's attention reads its whole cache, however short the prompt is.
    fused_attention: dtypes in which prefill's attention never holds a layer's scores.
    fused_whole_prompt: the same holds for single shot, a prompt without a cache.
    fused_shapes: limits of the fused kernel; other attention is composed of single operators. None:
    no limits.
    masks: cases in which attention needs an explicit mask.

    `memory.FACTORS` has what each target's runtime holds in memory.
    """

    title: str
    cache_dtypes: tuple[CacheDType, ...] = ()
    integer_dtypes: tuple[DType, ...] = ()
    integer_experts: bool = False
    signed_integers: bool = False
    openvino: bool = False
    fp8_weights: bool = False
    valid_slots: bool = False
    reads_fewer_slots: tuple[DType, ...] = ()
    domains: tuple[str, ...] = ()
    own_operators: tuple[str, ...] = ()
    tensor_types: tuple[str, ...] = ()
    largest_topk: int | None = None
    library: EngineLibrary | None = None
    one_product: tuple[DType, ...] = ()
    runs_on_gpu: bool = False
    plugins: bool = False
    weights_per_graph: bool = False
    cuda_dtypes: tuple[DType, ...] = DTYPES
    attends_to_capacity: bool = False
    fused_attention: tuple[DType, ...] = ()
    fused_whole_prompt: bool = False
    fused_shapes: FusedShapes | None = None
    masks: tuple[Masked, ...] = ()

    @property
    def compiled(self) -> bool:
        """Whether graphs run only as engines."""
        return self.library is not None

    def keeps(self, integers: Iterable[tuple[int, int]]) -> bool:
        """Whether a checkpoint's integers are kept by default: (bits, elements) of its matrices.

        Of a compiler most must have 4 bits: its products with 8 take longer than with 16.
        """
        found = list(integers)
        few, all_ = (sum(n for bits, n in found if bits <= most) for most in (4, 8))
        return bool(found) and (2 * few >= all_ or not self.compiled)


_COMPILED = TargetCapabilities(
    title="TensorRT",
    own_operators=("DistCollective",),
    tensor_types=TENSORRT_TYPES,
    # ITopKLayer::setK in NvInfer.h (10.15 and 11.1 alike).
    largest_topk=3840,
    library=TENSORRT,
    runs_on_gpu=True,
    integer_dtypes=DTYPES,
    integer_experts=True,
    signed_integers=True,
    fp8_weights=True,
    plugins=True,
    weights_per_graph=True,
    attends_to_capacity=True,
    fused_attention=("fp16", "bf16"),
    fused_whole_prompt=True,
    fused_shapes=MEASURED_SHAPES,
    masks=("chunk", "window", "softcap", "sink"),
)

_PORTABLE = TargetCapabilities(
    title="any runtime of standard ONNX",
    cache_dtypes=("fp16",),
    openvino=True,
    attends_to_capacity=True,
    masks=("window", "sink"),
)

TARGETS: Mapping[Target, TargetCapabilities] = {
    "onnxruntime": TargetCapabilities(
        title="ONNX Runtime",
        cache_dtypes=("fp16", "int8"),
        domains=("com.microsoft",),
        integer_dtypes=("fp32", "fp16"),
        integer_experts=True,
        valid_slots=True,
        reads_fewer_slots=("fp32",),
        # In fp32 GroupQueryAttention has no CUDA kernel: it and all caches would be on the CPU.
        cuda_dtypes=("fp16", "bf16"),
        one_product=("fp16", "bf16"),
        fused_attention=("fp32",),
    ),
    "tensorrt": _COMPILED,
    "tensorrt-rtx": replace(
        _COMPILED,
        title="TensorRT for RTX",
        library=TENSORRT_RTX,
        plugins=False,
    ),
    "portable": _PORTABLE,
    "openvino": replace(
        _PORTABLE,
        title="OpenVINO",
        cache_dtypes=(),
        domains=("com.microsoft",),
        integer_dtypes=("fp32",),
        reads_fewer_slots=("fp32",),
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
