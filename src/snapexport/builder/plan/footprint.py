"""One choice, counted: what a running build of it holds, part by part."""

from dataclasses import dataclass

from snapexport.builder import BuildOptions
from snapexport.builder.plan import activations, caches, weights
from snapexport.builder.plan.model import PlannedModel
from snapexport.contract.geometry import CacheGeometry

PROCESS = 80 * 2**20
"""Python, ONNX Runtime and its sessions, with nothing in them (docs/plan.md)."""

GPU_CONTEXT = 600 * 2**20
"""CUDA's context and TensorRT's libraries on the GPU: 574 MiB in a log of NVIDIA/TensorRT-LLM's
issue 538 (TensorRT 9), rounded up."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes, each as if it were all resident. slot: of decode_cache, one request's.

    prefill_work, compress_work, decode_work: beside weights and caches. shares_work: whether the
    graphs work in the same memory, since no two of them run at once.
    """

    process: int
    weights: int
    slot: int
    batch: int
    prefill_cache: int
    prefill_work: int
    compress_work: int
    decode_work: int
    shares_work: bool

    @property
    def decode_cache(self) -> int:
        return self.slot * self.batch

    @property
    def decode_resident(self) -> int:
        """What decoding needs, prompt or no prompt: all but prefill's and compress' work."""
        caches = self.decode_cache + self.prefill_cache
        return self.process + self.weights + caches + self.decode_work

    @property
    def prefill_peak(self) -> int:
        """The most there ever is: a prompt is prefilled while every slot holds a request."""
        resting = self.decode_resident - self.decode_work
        work = (self.prefill_work, self.compress_work, self.decode_work)
        return resting + (max(work) if self.shares_work else sum(work))


def footprint(
    model: PlannedModel, options: BuildOptions, geometry: CacheGeometry, chunk: int
) -> Footprint:
    """Of a build with these options, whose geometry and chunk are theirs for this model."""
    on_gpu = options.target == "tensorrt"
    compresses_apart = geometry.compresses and not geometry.is_single_shot(chunk)
    return Footprint(
        process=GPU_CONTEXT if on_gpu else PROCESS,
        weights=weights.held_bytes(model, options),
        slot=caches.slot_bytes(model.facts, geometry, options.held_dtype),
        batch=options.batch,
        prefill_cache=caches.prompt_bytes(model.facts, geometry, chunk, options.dtype),
        prefill_work=activations.prefill_bytes(model, options, geometry, chunk),
        compress_work=activations.compress_bytes(model, options, geometry)
        if compresses_apart
        else 0,
        decode_work=activations.decode_bytes(model, options, geometry),
        shares_work=on_gpu,
    )


def step_bytes(model: PlannedModel, options: BuildOptions, geometry: CacheGeometry) -> int:
    """Read by a decode step in which every slot is full: the weights once, and all the caches."""
    slot = caches.slot_bytes(model.facts, geometry, options.held_dtype)
    return weights.read_bytes(model, options) + options.batch * slot
