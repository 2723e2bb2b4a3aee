"""Sizes and least times of models that are too large to run here, by shapes and a data sheet.

Sizes are the planner's, from config.json alone. Times are rooflines: no device is as fast. Knows no
network; collectives among a worker's devices are not counted.
"""

import tempfile
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from snapexport.builder import BuildOptions
from snapexport.builder.plan.footprint import PlannedTensors
from snapexport.builder.plan.model import PlannedModel, read_model
from snapexport.builder.plan.request import PlanRequest
from snapexport.builder.plan.weights import read_bytes
from snapexport.contract.geometry import CacheGeometry
from snapexport.files.dtypes import BY_FLAG, DType
from snapexport.measure.bench.costs import Costs, LayerCosts, Weights
from snapexport.measure.bench.turns import Rates, Work
from tools.studies.speed import checkpoints
from tools.studies.speed.device_shares import Share, plan_devices_for

DTYPE: DType = "bf16"


@dataclass(frozen=True)
class Accelerator:
    """rates: bytes and operations a second of one device. source: of these numbers."""

    name: str
    memory: int
    rates: Rates
    source: str


H200 = Accelerator(
    "H200",
    141 * 10**9,
    Rates(4.8e12, 989e12),
    "141 GB, 4.8 TB/s, 989 TFLOP/s in bf16 without sparsity, by NVIDIA's data sheet of the SXM",
)


@dataclass(frozen=True)
class Published:
    """A model by its shapes. devices: of a worker, the fewest that hold it in bf16."""

    name: str
    shape: str
    devices: int


MODELS = (Published("Llama-3.1-8B", "8b", 1), Published("DeepSeek-R1", "r1", 16))


@cache
def read(shape: str) -> PlannedModel:
    """The planner's facts of a shape of `checkpoints.SHAPES`."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / shape
        checkpoints.write_config(directory, checkpoints.SHAPES[shape], DTYPE)
        return read_model(str(directory))


@dataclass(frozen=True)
class Worker:
    """A worker of a model on equal devices, with one cache.

    share: the planner's, of decode at its largest batch. prompt: tokens; answers end at L_max.
    """

    model: PlannedModel
    options: BuildOptions
    geometry: CacheGeometry
    share: Share
    devices: int
    accelerator: Accelerator
    prompt: int

    @property
    def row_bytes(self) -> int:
        """Of what moves: a batch slot of the cache, of all heads."""
        facts = self.model.facts
        return PlannedTensors.of(facts, self.options, self.geometry, 1).request_cache

    @property
    def slots(self) -> int:
        """Batch slots that the devices' memory holds."""
        return self.share.requests

    @cached_property
    def prefill_seconds(self) -> float:
        """A prompt, and the compress step if there is one; cut evenly over the devices."""
        costs = self._costs(self.prompt, absorbed=False)
        works = [costs.prefill(self.prompt)]
        if self.geometry.compresses:
            works.append(costs.compress(self.prompt))
        return sum(self._seconds(one.nbytes, one.operations) for one in works)

    def step_seconds(self, active: int) -> float:
        """A decode step at the last position.

        Heads are cut over the devices; of latents each device has its own requests' (MLA).
        """
        costs = self._costs(active, absorbed=True)
        of_weights, one = self._decode(costs, 0), self._decode(costs, 1)
        cache = one.nbytes - of_weights.nbytes
        products = 2 * costs.weights.elements
        together = self.devices if self.model.facts.latent else 1
        own = -(-active // together) * together  # the busiest device's requests, times devices
        return self._seconds(
            of_weights.nbytes + own * cache,
            active * products + own * (one.operations - products),
        )

    @property
    def copy_seconds(self) -> float:
        """Reading and writing a row in the memory of one device."""
        return 2 * self.row_bytes / self.accelerator.rates.nbytes

    def _decode(self, costs: Costs, active: int) -> Work:
        return costs.decode(self.geometry.L_max - 1, active)

    def _seconds(self, nbytes: int, operations: int) -> float:
        rates = self.accelerator.rates
        of_all = Rates(rates.nbytes * self.devices, rates.operations * self.devices)
        return of_all.roofline(Work(nbytes, operations))[0]

    def _costs(self, tokens: int, *, absorbed: bool) -> Costs:
        """Of a step of so many tokens. absorbed: the form of latent attention, if it is that."""
        layers = [self._layer(index, absorbed) for index in range(self.geometry.slots.num_caches)]
        return Costs(
            _weights(self.model, self.options, tokens), tuple(layers), self.geometry.vote.L_obs
        )

    def _layer(self, index: int, absorbed: bool) -> LayerCosts:
        latent, layer = self.model.facts.latent, self.model.facts.layer(index)
        key, value = (layer.kv_heads * width * BY_FLAG[DTYPE].bytes for width in layer.widths)
        per_head = sum(layer.widths)
        if latent:
            of_latents = 2 * latent.rank + latent.rope
            per_head = of_latents if absorbed else latent.head + latent.value
        pair, shape = 2 * layer.heads * per_head, self.geometry.layers[index]
        return LayerCosts(shape, key, value, key + value, pair, layer.window)


def _weights(model: PlannedModel, options: BuildOptions, tokens: int) -> Weights:
    """What a step of so many tokens reads and multiplies: of experts the expected share."""
    linear = [rows * columns for rows, columns in model.linear]
    experts = model.experts
    chosen = experts.layers * experts.chosen * experts.elements if experts else 0
    nbytes = read_bytes(model, replace(options, batch=max(1, tokens)))
    return Weights(nbytes, sum(linear) + chosen, linear[-1])


def workers(
    published: Published, accelerator: Accelerator, L_max: int, kv_budget: int, prompt: int
) -> tuple[Worker, Worker]:
    """Workers with the full cache and with the compressed one. Raises UserError if none fits."""
    model = read(published.shape)
    given = {"model": published.shape, "L_max": L_max, "kv_budget": kv_budget}
    request = PlanRequest(accelerator.memory, given | {"target": "tensorrt", "dtype": DTYPE})
    plan = plan_devices_for(request, published.devices, model)
    geometry = plan.options.geometry(model.facts)
    full, compressed = (
        Worker(model, plan.options, cache, share, published.devices, accelerator, prompt)
        for cache, share in zip((geometry.as_full(), geometry), plan.shares[1:], strict=True)
    )
    return full, compressed
