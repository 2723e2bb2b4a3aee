"""Counts the bytes that a running build holds, part by part."""

from dataclasses import dataclass

from snapexport.builder import BuildOptions
from snapexport.builder.plan.activations import Activations
from snapexport.builder.plan.model import PlannedModel
from snapexport.builder.plan.tensors import PlannedTensors
from snapexport.builder.plan.weights import held_bytes
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.memory import GPU_CONTEXT
from snapexport.contract.targets import capabilities

PROCESS = 80 * 2**20
"""Python, ONNX Runtime and empty sessions (docs/how-to/plan.md)."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of a running build, as if all were resident. request_cache: of one request in decode.

    prefill_work, compress_work, decode_work: activations. shares_work: whether the graphs share the
    memory of their activations; no two graphs run at once.
    """

    process: int
    weights: int
    request_cache: int
    batch: int
    prefill_cache: int
    prefill_work: int
    compress_work: int
    decode_work: int
    shares_work: bool

    @property
    def decode_cache(self) -> int:
        return self.request_cache * self.batch

    @property
    def decode_resident(self) -> int:
        """Bytes while decoding: all but the work of prefill and of the compress step."""
        caches = self.decode_cache + self.prefill_cache
        return self.process + self.weights + caches + self.decode_work

    @property
    def prefill_peak(self) -> int:
        """The peak: a prompt is prefilled while every batch slot holds a request."""
        resting = self.decode_resident - self.decode_work
        work = (self.prefill_work, self.compress_work, self.decode_work)
        return resting + (max(work) if self.shares_work else sum(work))


def footprint(
    model: PlannedModel,
    options: BuildOptions,
    geometry: CacheGeometry,
    chunk: int,
    tensors: PlannedTensors | None = None,
) -> Footprint:
    """The footprint of a build. geometry, chunk: those of `options` for this model.

    tensors: of any batch, where they are counted already.
    """
    on_gpu = capabilities(options.target).runs_on_gpu
    compresses_apart = geometry.compresses and not geometry.is_single_shot(chunk)
    tensors = tensors or PlannedTensors.of(model.facts, options, geometry, chunk)
    work = Activations(model, options, geometry, chunk)
    return Footprint(
        process=GPU_CONTEXT if on_gpu else PROCESS,
        weights=held_bytes(model, options),
        request_cache=tensors.request_cache,
        batch=options.batch,
        prefill_cache=tensors.prompt_cache,
        prefill_work=work.prefill(tensors.outputs),
        compress_work=work.compress() if compresses_apart else 0,
        decode_work=work.decode(),
        shares_work=on_gpu,
    )
